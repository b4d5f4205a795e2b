"""What a run is before anybody drives it: its home, spec, lease, control state, results, and what the flow asks of the outside."""
