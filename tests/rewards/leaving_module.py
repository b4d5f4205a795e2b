"""A script that is no module: importing it exits, as if all were done."""

import sys

sys.exit(0)
