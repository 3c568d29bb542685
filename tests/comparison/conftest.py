import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # fake_runs, which only these tests use
