"""Trainings of one's own on YATT's public contract alone: each subject is a folder with its workloads, specs and tests."""
