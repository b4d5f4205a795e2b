"""The entropy of the policy: how it is computed, rewarded and kept, one file a method."""
