"""What each role holds on a device, whether everything fits, and which changes would make it fit."""
