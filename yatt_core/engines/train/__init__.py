"""Engines that train. They share `ranks`, `model`, `steps`, `roles` and `base`; each has a package of its own."""
