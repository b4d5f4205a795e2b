"""Small things to try YATT on; no part of the installed packages."""
