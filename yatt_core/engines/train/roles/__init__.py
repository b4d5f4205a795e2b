"""The trainer's roles other than the policy: the critic, the teacher of distillation, supervised fine-tuning."""
