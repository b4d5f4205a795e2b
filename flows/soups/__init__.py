"""Soups: several runs of one spec on mixed rewards, and the models merged from them."""
