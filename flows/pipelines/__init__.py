"""Pipelines: specs of jobs that need each other, what is ready, how each kind is done, and what begins a deployed one."""
