"""Soups: several runs of one spec on mixed rewards, coefficients for a preference, and models merged from them."""
