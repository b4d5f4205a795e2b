#!/usr/bin/env bash
# Prefect 3.7.7: the starts of an interval schedule of one day depend on the moment from which they are asked for. Within one answer
# they keep the clock time of their time zone across a clock change; but an answer that begins in the other half of the year than the
# schedule's anchor is an hour off. The scheduler, which asks anew all the time, therefore plans the same days twice around a change:
# each day at both hours. Cron lines and recurrence rules keep the clock time. With 3.9.1 intervals keep it, too.
# Seen, for an anchor at 22:30 in January in Berlin: starts of July at 22:30 if asked for from January on, at 23:30 if from July on.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q "prefect==3.7.7"
cat > "$folder/see.py" <<'PY'
import asyncio
import sys
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from prefect.server.schemas.schedules import CronSchedule, IntervalSchedule, RRuleSchedule

BERLIN = ZoneInfo("Europe/Berlin")
ANCHOR = datetime(2026, 1, 15, 21, 30, tzinfo=UTC)
JULY = datetime(2026, 7, 15, tzinfo=UTC)
schedules = {
    "interval": IntervalSchedule(interval=timedelta(days=1), anchor_date=ANCHOR, timezone="Europe/Berlin"),
    "cron": CronSchedule(cron="30 22 * * *", timezone="Europe/Berlin"),
    "rule": RRuleSchedule(rrule="DTSTART:20260115T223000\nRRULE:FREQ=DAILY;INTERVAL=1", timezone="Europe/Berlin"),
}


def in_july(schedule, asked_from):
    starts = asyncio.run(schedule.get_dates(n=250, start=asked_from))
    moments = [datetime.fromtimestamp(start.timestamp(), BERLIN) for start in starts]
    return sorted({moment.strftime("%H:%M") for moment in moments if moment.month == 7})


seen = {name: (in_july(schedule, ANCHOR), in_july(schedule, JULY)) for name, schedule in schedules.items()}
for name, (early, late) in seen.items():
    print(f"{name}: starts of July, asked for from January on: {early}, from July on: {late}")
same = (["22:30"], ["22:30"])
sys.exit(0 if seen == {"interval": (["22:30"], ["23:30"]), "cron": same, "rule": same} else 1)
PY
export PREFECT_HOME="$folder/prefect" DO_NOT_TRACK=1
"$folder/env/bin/python" "$folder/see.py" 2> "$folder/log" || { tail -5 "$folder/log"; false; }
