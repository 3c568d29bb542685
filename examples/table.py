"""Predict a number from a table with numbers and names, without a network of your own: python examples/table.py [CSV]"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import ps_cluster

SMALL = "--small" in sys.argv
NOISE = 40  # what no column tells
EXTRA = {"centre": 350, "harbour": 200, "hills": 120, "suburb": 0}  # of the rent, by district


def generate(file, rows):
    """Write generated flats, in place of your own table."""
    draw = np.random.default_rng(0)
    lines = ["district,size,rooms,age,floor,rent"]
    for _ in range(rows):
        district, size = draw.choice(list(EXTRA)), draw.uniform(20, 150)
        rooms = int(np.clip(round(size / 28 + draw.normal(0, 0.6)), 1, 6))
        age, floor = draw.uniform(0, 100), draw.integers(0, 8)
        rent = 200 + EXTRA[district] + 9 * size + 40 * rooms - 3 * age + 0.02 * max(age - 60, 0) ** 2 + 15 * floor
        lines.append(f"{district},{size:.1f},{rooms},{age:.0f},{floor},{rent + draw.normal(0, NOISE):.2f}")
    file.write_text("\n".join(lines) + "\n")


with tempfile.TemporaryDirectory(prefix="table-") as generated:
    given = [argument for argument in sys.argv[1:] if argument != "--small"]
    table = Path(given[0]) if given else Path(generated) / "flats.csv"
    if not given:
        generate(table, rows=4_000 if SMALL else 20_000)

    # A tenth of the rows is held out to test on. Numbers are standardised, and names encoded, by the training rows alone.
    result = ps_cluster.train(model="mlp", data=table, target="rent", workers=2, epochs=20, batch_size=64)

print(f"mean error of the rent: {result.history[-1]['test_error']:.0f}; {NOISE * 0.8:.0f} are noise")
