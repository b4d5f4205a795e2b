"""Commands that show what a run did: `runs`, `show`, `logs`, `alarms`, `rollouts`, `placement`, `audit`."""
