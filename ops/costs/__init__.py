"""What runs cost: its view, its command, its page and its words."""
