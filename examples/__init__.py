"""Small examples to try YATT with; they are not part of the installed packages."""
