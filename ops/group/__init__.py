"""The service group of `yatt up`: its members, and how they are started, watched and stopped."""
