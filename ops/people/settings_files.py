"""The files of the home folder in which people's settings are, for backups; a digest of a token is no secret, a key is."""

from __future__ import annotations

from ops.people import sign_in_settings, tokens, users

SETTINGS_FILES = (users.FILE, tokens.FILE, sign_in_settings.FILE)
