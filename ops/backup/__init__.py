"""Commands that back up, restore and maintain a home."""
