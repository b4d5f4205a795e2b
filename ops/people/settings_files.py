"""The files of the home folder in which people's settings are, for backups.

Tokens are apart: a home that is restored with them lets in whoever has one, which nobody may expect of a copy.
"""

from __future__ import annotations

from ops.people import sign_in_settings, tokens, users

SETTINGS_FILES = (users.FILE, sign_in_settings.FILE)
TOKEN_FILES = (tokens.FILE,)
