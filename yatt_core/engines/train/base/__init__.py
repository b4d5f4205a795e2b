"""What all trainers with a real model share: versions, preparation, the steps of an update, the export of weights."""
