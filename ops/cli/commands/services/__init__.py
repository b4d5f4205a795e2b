"""Commands for supporting services: the service group (`up`, `down`, `status`), the dashboard and its tokens."""
