"""What all trainers with a real model share: versions, preparation, the course of an update, how weights leave."""
