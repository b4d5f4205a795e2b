"""KL penalties: estimators of the divergence from the reference, and the control of the coefficient."""
