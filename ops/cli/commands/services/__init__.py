"""The services beside a run: the group (`up`, `down`, `status`), the dashboard, and tokens for it."""
