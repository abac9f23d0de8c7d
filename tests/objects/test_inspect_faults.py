"""`tokctl inspect` while a manifest changes that it copies, and where no thread can be created."""

import os

import pytest

from lib import TOKCTL, Place, run
from lib.fault_proxy import FaultProxy
from lib.preload import Preload
from lib.stores import Moto

SHARDS = 4
FEW_THREADS = r"""
#include <errno.h>
#include <pthread.h>

int pthread_create(pthread_t *to, const pthread_attr_t *how, void *(*f)(void *), void *context)
{
	NEXT(pthread_create);
	return words[LEFT]-- > 0 ? next(to, how, f, context) : EAGAIN;
}
"""


@pytest.fixture(scope="module")
def scene():
    with Place() as place:
        for i in range(SHARDS):
            place.shard(f"flat/{i}.bin", 5000)
        with Moto(place) as store, FaultProxy(store.port) as proxy:
            store.upload("corpus", place.file("flat"), "flat/")
            place.proxy, place.env = proxy, store.environment(AWS_ENDPOINT_URL_S3=proxy.endpoint)
            yield place


@pytest.mark.parametrize("change", ["longer", "shorter", "renamed"])
def test_a_manifest_that_changes_while_it_is_copied(scene, change):
    path, out = scene.file("changes.jsonl"), scene.file("copied.jsonl")
    code, _, err = run(TOKCTL, "inspect", "--manifest", path, scene.file("flat"))
    assert code == 0, err
    with open(path) as f:
        lines = f.readlines()
    changed = {
        "longer": [*lines, lines[-1]],
        "shorter": lines[:-1],
        "renamed": [*lines[:-1], lines[-1].replace(".bin", ".bIn", 1)],
    }

    def rewrite(request):
        with open(path, "w") as f:
            f.writelines(changed[change])

    scene.proxy.inject("changes", rewrite, times=1)
    arguments = ("--manifest", out, "--from", path, "s3://corpus/flat/")
    code, _, err = run(TOKCTL, "inspect", *arguments, env=scene.env)
    scene.proxy.clear()
    assert code == 1 and not os.path.exists(out), err


def test_shards_are_read_without_threads(scene):
    few = Preload(scene, FEW_THREADS, ["left"])
    few.set(left=2)  # those of the store
    env = {**few.env, **scene.env}
    code, out, err = run(TOKCTL, "inspect", "s3://corpus/flat/", env=env)
    assert code == 0 and out.count(b"flat") >= SHARDS, (out, err)
    assert few.get("left") < 0
