"""The few public names, and what an import costs."""

import ps_cluster
from tests.test_imports import imported_by


def test_every_public_name_is_there_and_belongs_to_the_api():
    assert {name: getattr(ps_cluster, name).__class__ for name in ps_cluster.__all__}
    assert set(ps_cluster.__all__) == set(ps_cluster._HOMES) <= set(dir(ps_cluster))
    assert not hasattr(ps_cluster, "trains")


def test_the_import_of_the_package_imports_nothing_that_takes_time():
    assert not imported_by("import ps_cluster") & {"numpy", "pydantic", "click", "tensorflow", "keras"}


def test_the_api_trains_without_tensorflow_in_the_callers_process():
    loaded = imported_by("import ps_cluster; ps_cluster.train, ps_cluster.compare, ps_cluster.Result")
    assert "ps_cluster.launch.local_run" in loaded and not loaded & {"tensorflow", "keras", "matplotlib"}
