"""Several hosts on one machine: network namespaces on a bridge, and what runs across them."""
