#!/usr/bin/env bash
# SQLAlchemy 2.1.9 on SQLite, numpy 2.4.6: a numpy integer (np.argmax, .sum(), an array's element) in an Integer column is stored as its
# bytes, without a message. The row comes back as bytes, counts as 0 in a sum, is larger than every number in a comparison and in
# `max`, and is not found by the number. A float32 in a Float column is stored as the number that it is.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install -q sqlalchemy==2.1.9 numpy==2.4.6
"$folder/env/bin/python" - <<'PY'
import sys

import numpy as np
from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase):
    pass


class Sample(Base):
    __tablename__ = "samples"
    number: Mapped[int] = mapped_column(primary_key=True)
    tokens: Mapped[int]
    reward: Mapped[float]


engine = create_engine("sqlite://")
Base.metadata.create_all(engine)
with Session(engine) as session:
    lengths = np.array([7, 9])
    session.add(Sample(number=1, tokens=lengths[0], reward=np.float32(0.5)))
    session.add(Sample(number=2, tokens=int(lengths[1]), reward=0.25))
    session.commit()
    session.expire_all()
    found = {
        "stored": session.execute(select(Sample.tokens).order_by(Sample.number)).scalars().all(),
        "types": session.execute(select(func.typeof(Sample.tokens), func.typeof(Sample.reward))).all(),
        "sum": session.scalar(select(func.sum(Sample.tokens))),
        "max": session.scalar(select(func.max(Sample.tokens))),
        "more than 1,000,000": session.execute(select(Sample.number).where(Sample.tokens > 1_000_000)).scalars().all(),
        "equal to 7": session.execute(select(Sample.number).where(Sample.tokens == 7)).scalars().all(),
    }
for name, value in found.items():
    print(f"{name}: {value}")
seven = np.int64(7).tobytes()
expected = {
    "stored": [seven, 9],
    "types": [("blob", "real"), ("integer", "real")],
    "sum": 9,
    "max": seven,
    "more than 1,000,000": [1],
    "equal to 7": [],
}
sys.exit(0 if found == expected else 1)
PY
