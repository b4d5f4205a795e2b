"""What a run did and what it left: `runs`, `show`, `logs`, `alarms`, `rollouts`, `placement`, `audit`."""
