"""What stands beside the policy in a trainer: the critic, the teacher of distillation, supervised fine-tuning."""
