from ps_cluster.files.values import number_text
from ps_cluster.report.placement import placement_lines


def test_operations_that_compute_are_listed_by_device_and_all_are_counted(tmp_path):
    rows = [
        "device,type,operation",
        "/job:chief/replica:0/task:0/device:CPU:0,Const,one",
        "/job:worker/replica:0/task:1/device:CPU:0,Relu,net/relu",
        '/job:worker/replica:0/task:1/device:CPU:0,_Recv,"a,b"',
    ]
    (tmp_path / "placement.csv").write_text("\n".join(rows) + "\n")
    first, *counts, last = placement_lines(tmp_path / "placement.csv")
    assert first == "/job:worker/task:1 CPU:0  Relu  net/relu"
    assert counts == ["/job:chief/task:0 CPU:0: 1 operations", "/job:worker/task:1 CPU:0: 2 operations"]
    file = tmp_path / "placement.csv"
    assert last == f"2 of all 3 operations only hold or pass on values, and are not listed: see {file}"


def test_a_large_number_is_written_whole_and_a_small_one_with_four_digits():
    numbers = (0.123456, -9_999.4, 22_460.3, -1e6, 3e15)
    assert [number_text(number) for number in numbers] == ["0.1235", "-9999", "22,460", "-1,000,000", "3e+15"]
