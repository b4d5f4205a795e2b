"""What each role holds on a device, whether it fits, and what would make it fit."""
