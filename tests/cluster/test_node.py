"""The node's checks: one refusal for each thing a node can lack, on faked facts about torch and the driver."""

import re
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentrl.cluster import node
from agentrl.cluster.node import Gpu, NodeError

H200 = Gpu(
    "2.13.0+cu130", "13.0", "580.65.06", "13.0", "NVIDIA H200", 1, 140 << 30, 139 << 30, bf16=True
)
WEIGHTS = 4 << 30
ROOT = Path(__file__).resolve().parents[2]
ENVS = ROOT / "envs"
PINNED = dict.fromkeys(node.CHECKED, "1.0") | {"torch": "2.13.0", "trl": "1.16.0"}
LOCK = "# torch==1.0.0 in a comment\nunrelated==9.9\n" + "".join(
    f"{name}=={version} # why\n" for name, version in PINNED.items()
)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "lock.txt"
    path.write_text(LOCK, encoding="utf-8")
    return path


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


def fake_torch(*, available: bool) -> SimpleNamespace:
    cuda = SimpleNamespace(
        is_available=lambda: available, mem_get_info=lambda _: (H200.free, H200.memory), device_count=lambda: 1,
        get_device_name=lambda _: H200.name, is_bf16_supported=lambda including_emulation: not including_emulation,
    )  # fmt: skip
    return SimpleNamespace(__version__=H200.torch, version=SimpleNamespace(cuda="13.0"), cuda=cuda)


def test_a_fit_gpu_passes() -> None:
    node.check_gpu(H200, "bfloat16", WEIGHTS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"built_for": None}, ("CPU build", "model.device is cuda", "python or image")),
        ({"driver": None, "driver_cuda": None}, ("no NVIDIA driver", "--nv")),
        (
            {"driver": "535.104.05", "driver_cuda": "12.2"},
            ("535.104.05", "CUDA up to 12.2", "built for CUDA 13.0", "a torch for CUDA 12"),
        ),
        ({"name": None}, ("no GPU for this job", "gpus_as: gres", "CUDA_VISIBLE_DEVICES")),
        (
            {"name": "Tesla V100", "bf16": False},
            ("Tesla V100 has no BF16", "model.dtype is bfloat16", "gpu_model"),
        ),
        ({"free": 7 << 30}, ("7.0 GiB of 140.0 GiB free", "weights of 4.0 GiB", "about 8.0 GiB")),
    ],
)
def test_each_lack_of_a_gpu_is_refused_by_name(
    changes: dict[str, object], words: tuple[str, ...]
) -> None:
    with pytest.raises(NodeError) as refused:
        node.check_gpu(replace(H200, **changes), "bfloat16", WEIGHTS)
    assert all(word in str(refused.value) for word in words), refused.value


def test_a_newer_driver_and_an_older_minor_version_pass() -> None:
    node.check_gpu(replace(H200, driver_cuda="14.1"), "bfloat16", WEIGHTS)
    node.check_gpu(replace(H200, built_for="13.2"), "bfloat16", WEIGHTS)


def test_float32_needs_no_bf16() -> None:
    node.check_gpu(replace(H200, bf16=False), "float32", WEIGHTS)


def test_facts_come_from_torch_and_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "driver", lambda: "580.65.06")
    assert node.look(fake_torch(available=True), lambda: "13.0") == H200
    blind = node.look(fake_torch(available=False), lambda: None)
    assert (blind.name, blind.count, blind.driver_cuda, blind.built_for) == (None, 0, None, "13.0")


@pytest.mark.parametrize(
    ("line", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023",
            "535.104.05",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build",
            "580.159.04",
        ),
        ("something else", None),
    ],
)
def test_the_drivers_version_is_read_from_both_of_its_forms(
    line: str, version: str | None, tmp_path: Path
) -> None:
    (tmp_path / "version").write_text(f"{line}\nGCC version: gcc 12.2.0\n", encoding="utf-8")
    assert node.driver(tmp_path / "version") == version
    assert node.driver(tmp_path / "missing") is None


def installed(versions: dict[str, str]) -> Callable[[str], str]:
    """Like `metadata.version`, in an environment that has exactly these."""

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    return version


def test_packages_as_pinned_pass_whatever_the_build(lock: Path) -> None:
    found = PINNED | {"torch": "2.13.0+cpu"}
    assert node.check_packages(lock, "auto", "cpu", installed(found)) == found


def test_every_wrong_package_is_named(lock: Path) -> None:
    found = {name: version for name, version in PINNED.items() if name != "trl"} | {
        "torch": "2.12.1"
    }
    with pytest.raises(
        NodeError, match=r"torch 2\.12\.1 instead of 2\.13\.0, trl missing instead of 1\.16\.0"
    ) as refused:
        node.check_packages(lock, "transformers", "cpu", installed(found))
    assert f"pip install -r {lock}" in str(refused.value)
    assert "PIPELINE_GPU_LOCK" in str(refused.value)


def test_a_missing_lock_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match=r"lock\.txt: cannot be read"):
        node.check_packages(tmp_path / "lock.txt", "auto", "cpu")


def test_a_lock_that_lacks_a_package_that_gpu_rules_rest_on_is_refused(lock: Path) -> None:
    lock.write_text(
        "torch==2.13.0\n" + "".join(f"{name}==1.0\n" for name in node.CHECKED[3:]), encoding="utf-8"
    )
    with pytest.raises(NodeError, match=r"lock\.txt pins no transformers, no trl, .*envs/gpu\.txt"):
        node.check_packages(lock, "transformers", "cpu", installed(PINNED))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_vllm_is_not_asked_for_where_the_transformers_engine_is_named(
    lock: Path, device: str
) -> None:
    assert (
        node.check_packages(lock, "transformers", device, installed(PINNED | {"vllm": "0.1"}))
        == PINNED
    )
    append(lock, "vllm==0.26.0\n")
    assert node.check_packages(lock, "transformers", device, installed(PINNED)) == PINNED


@pytest.mark.parametrize("name", node.VLLM)
def test_the_engine_vllm_needs_a_pinned_one(lock: Path, name: str) -> None:
    with pytest.raises(
        NodeError,
        match=r"model\.engine is vllm, but .*lock\.txt pins no vllm; .*envs/gpu\.txt.*transformers or auto",
    ):
        node.check_packages(lock, "vllm", "cuda", installed(PINNED | {name: "0.26.0"}))
    append(lock, f"{name}==0.26.0\n")
    with pytest.raises(NodeError, match=rf"{name} missing instead of 0\.26\.0"):
        node.check_packages(lock, "vllm", "cuda", installed(PINNED))
    found = PINNED | {name: "0.26.0+cu130"}
    assert node.check_packages(lock, "vllm", "cuda", installed(found)) == found


def test_the_engine_auto_does_without_vllm_but_not_with_another_one(lock: Path) -> None:
    """It may choose one that it finds on a GPU; on a CPU it never does."""
    other = installed(PINNED | {"vllm": "0.30.0"})
    with pytest.raises(
        NodeError,
        match=r"vllm 0\.30\.0 instead of none that is pinned.*model\.engine: transformers does without",
    ):
        node.check_packages(lock, "auto", "cuda", other)
    append(lock, "vllm==0.26.0\n")
    assert node.check_packages(lock, "auto", "cuda", installed(PINNED)) == PINNED
    with pytest.raises(NodeError, match=r"vllm 0\.30\.0 instead of 0\.26\.0"):
        node.check_packages(lock, "auto", "cuda", other)
    assert node.check_packages(lock, "auto", "cpu", other) == PINNED
    found = PINNED | {"vllm": "0.26.0"}
    assert node.check_packages(lock, "auto", "cuda", installed(found)) == found


# The documented environments: lock, `model.device`, engines that it serves, newest CUDA version of the oldest driver it is given with.
DOCUMENTED = [
    ("cpu.txt", "cpu", ("auto", "transformers"), None),
    ("gpu.txt", "cuda", ("auto", "transformers", "vllm"), "13.0"),
    ("gpu-cu12.txt", "cuda", ("auto", "transformers"), "12.0"),
]
DIFFERENT = {"gpu.txt": {"torch", "numpy", "setuptools"}, "gpu-cu12.txt": {"torch"}}
"""Packages whose version is not that of cpu.txt, each with its reason in the lock's header."""
CUDA_RUNTIMES = ("cuda-toolkit", "nvidia-cuda-runtime-cu12")
"""Packages whose version is the CUDA version that the lock's torch was built with."""


def built_for(pinned: dict[str, str]) -> str | None:
    """CUDA version of the torch that a lock pins, read off what comes with it."""
    found = [pinned[name] for name in CUDA_RUNTIMES if name in pinned]
    return ".".join(found[0].split(".")[:2]) if found else None


def test_every_lock_is_among_the_documented_environments() -> None:
    assert {path.name for path in ENVS.glob("*.txt")} == {name for name, *_ in DOCUMENTED} | {
        "test-only.txt"
    }
    texts = [
        (ROOT / name).read_text(encoding="utf-8")
        for name in ("envs/gpu/README.md", "docs/clusters.md", "docs/real-study.md")
    ]
    assert all(any(f"envs/{name}" in text for text in texts) for name, *_ in DOCUMENTED)


@pytest.mark.parametrize(
    ("name", "device", "engine", "driver"),
    [
        (name, device, engine, driver)
        for name, device, engines, driver in DOCUMENTED
        for engine in engines
    ],
)
def test_every_documented_environment_passes_its_own_preflight(
    name: str,
    device: str,
    engine: str,
    driver: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pinned = node.pins(ENVS / name)
    gpu = replace(H200, torch=pinned["torch"], built_for=built_for(pinned), driver_cuda=driver)
    monkeypatch.setattr(node, "look", lambda *_: gpu)
    monkeypatch.setattr(node, "_installed", lambda package, _: pinned.get(package, node.MISSING))
    report = node.check(
        {"start": None, "engine": engine, "device": device, "dtype": "bfloat16"},
        ENVS / name,
        tmp_path,
        0,
    )
    assert set(node.CHECKED) <= set(report["packages"])
    assert ("vllm" in report["packages"]) == ("vllm" in pinned and engine != "transformers")
    assert (report["gpu"] is None) == (device == "cpu")


def test_an_environment_for_cuda_12_is_refused_the_engine_it_lacks() -> None:
    pinned = node.pins(ENVS / "gpu-cu12.txt")
    with pytest.raises(NodeError, match=r"model\.engine is vllm, but .*gpu-cu12\.txt pins no vllm"):
        node.check_packages(ENVS / "gpu-cu12.txt", "vllm", "cuda", installed(pinned))


def test_the_lock_for_cuda_13_is_refused_on_a_driver_for_cuda_12() -> None:
    """Why the other lock exists."""
    pinned = node.pins(ENVS / "gpu.txt")
    with pytest.raises(
        NodeError, match=r"built for CUDA 13\.0; use a torch for CUDA 12 \(envs/gpu/README\.md\)"
    ):
        node.check_gpu(
            replace(H200, torch=pinned["torch"], built_for=built_for(pinned), driver_cuda="12.8"),
            "bfloat16",
            0,
        )


@pytest.mark.parametrize("name", DIFFERENT)
def test_packages_of_a_gpu_lock_are_those_of_the_laptop(name: str) -> None:
    """What trains and what is tested here is the same; each exception is named."""
    common, own = node.pins(ENVS / "cpu.txt"), node.pins(ENVS / name)
    assert {
        package for package in common.keys() & own.keys() if common[package] != own[package]
    } == DIFFERENT[name]
    assert {
        "trl",
        "peft",
        "transformers",
        "datasets",
        "accelerate",
        "tokenizers",
    } <= common.keys() & own.keys() - DIFFERENT[name]


@pytest.mark.parametrize("name", DIFFERENT)
def test_every_package_of_a_gpu_lock_has_its_hash(name: str) -> None:
    lines = [
        line
        for line in (ENVS / name).read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    ]
    assert [
        line
        for line in lines
        if not re.fullmatch(r"[A-Za-z0-9._-]+==\S+ --hash=sha256:[0-9a-f]{64}", line)
    ] == []
    assert (
        len({line.split("==")[0].lower().replace("_", "-") for line in lines}) == len(lines) > 100
    )


def test_a_full_disk_is_refused(tmp_path: Path) -> None:
    def usage(_: Path) -> SimpleNamespace:
        return SimpleNamespace(free=9 << 30)

    assert node.check_disk(tmp_path, WEIGHTS, 1, usage) == 9 << 30
    with pytest.raises(
        NodeError,
        match=r"9\.0 GiB free, but 2 checkpoints of 4\.0 GiB and the evidence need 10\.0 GiB",
    ):
        node.check_disk(tmp_path, WEIGHTS, 2, usage)


def test_a_cpu_configuration_looks_at_packages_and_disk_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unwanted(*_: object) -> None:
        raise AssertionError("torch was looked at")

    monkeypatch.setattr(node, "look", unwanted)
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    here = {name: metadata.version(name) for name in node.CHECKED}
    lock = tmp_path / "lock.txt"
    lock.write_text(
        "".join(f"{name}=={version.split('+')[0]}\n" for name, version in here.items()),
        encoding="utf-8",
    )
    report = node.check(
        {"start": str(tmp_path), "engine": "auto", "device": "cpu", "dtype": "float32"},
        lock,
        tmp_path,
        1,
    )
    assert (report["gpu"], report["weights"], report["packages"], report["lock"]) == (
        None,
        5,
        here,
        lock.as_posix(),
    )
    assert node.sentence(report, lock).startswith(f"node: CPU; {len(here)} packages as in ")


def test_weights_are_unknown_before_the_demo_made_them() -> None:
    assert node.weights_of(None) == 0
