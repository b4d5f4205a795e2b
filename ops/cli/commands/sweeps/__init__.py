"""Commands about sweeps: `sweep SPEC`, `sweep resume`, `sweep show`."""
