"""The node's checks: one refusal for each thing a node can lack, on faked facts about torch and the driver."""

from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentrl import node
from agentrl.node import Gpu, NodeError

H200 = Gpu("2.13.0+cu130", "13.0", "580.65.06", "13.0", "NVIDIA H200", 1, 140 << 30, 139 << 30, bf16=True)
WEIGHTS = 4 << 30
LOCK = "# torch==1.0.0 in a comment\ntorch==2.13.0\ntrl==1.16.0 # why\nunrelated==9.9\n"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "lock.txt"
    path.write_text(LOCK, encoding="utf-8")
    return path


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
        ({"driver": "535.104.05", "driver_cuda": "12.2"}, ("535.104.05", "CUDA up to 12.2", "built for CUDA 13.0", "a torch for CUDA 12")),
        ({"name": None}, ("no GPU for this job", "gpus_as: gres", "CUDA_VISIBLE_DEVICES")),
        ({"name": "Tesla V100", "bf16": False}, ("Tesla V100 has no BF16", "model.dtype is bfloat16", "gpu_model")),
        ({"free": 7 << 30}, ("7.0 GiB of 140.0 GiB free", "weights of 4.0 GiB", "about 8.0 GiB")),
    ],
)
def test_each_lack_of_a_gpu_is_refused_by_name(changes: dict[str, object], words: tuple[str, ...]) -> None:
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
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build", "580.159.04"),
        ("something else", None),
    ],
)
def test_the_drivers_version_is_read_from_both_of_its_forms(line: str, version: str | None, tmp_path: Path) -> None:
    (tmp_path / "version").write_text(f"{line}\nGCC version: gcc 12.2.0\n", encoding="utf-8")
    assert node.driver(tmp_path / "version") == version
    assert node.driver(tmp_path / "missing") is None


def test_packages_as_pinned_pass_whatever_the_build(lock: Path) -> None:
    installed = {"torch": "2.13.0+cpu", "trl": "1.16.0"}
    assert node.check_packages(lock, installed.__getitem__) == installed


def test_every_wrong_package_is_named(lock: Path) -> None:
    def version(name: str) -> str:
        if name == "trl":
            raise metadata.PackageNotFoundError(name)
        return "2.12.1"

    with pytest.raises(NodeError, match=r"torch 2\.12\.1 instead of 2\.13\.0, trl missing instead of 1\.16\.0") as refused:
        node.check_packages(lock, version)
    assert f"pip install -r {lock}" in str(refused.value)


def test_a_missing_lock_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match=r"lock\.txt: cannot be read"):
        node.check_packages(tmp_path / "lock.txt")


def test_the_lock_of_this_environment_pins_what_is_checked() -> None:
    assert set(node.pins(Path(__file__).resolve().parents[1] / "envs/cpu.txt")) >= set(node.CHECKED) - {"vllm"}


def test_a_full_disk_is_refused(tmp_path: Path) -> None:
    def usage(_: Path) -> SimpleNamespace:
        return SimpleNamespace(free=9 << 30)

    assert node.check_disk(tmp_path, WEIGHTS, 1, usage) == 9 << 30
    with pytest.raises(NodeError, match=r"9\.0 GiB free, but 2 checkpoints of 4\.0 GiB and the evidence need 10\.0 GiB"):
        node.check_disk(tmp_path, WEIGHTS, 2, usage)


def test_a_cpu_configuration_looks_at_packages_and_disk_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(*_: object) -> None:
        raise AssertionError("torch was looked at")

    monkeypatch.setattr(node, "look", unwanted)
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    lock = tmp_path / "lock.txt"
    lock.write_text(f"numpy=={metadata.version('numpy')}\n", encoding="utf-8")
    report = node.check({"start": str(tmp_path), "device": "cpu", "dtype": "float32"}, lock, tmp_path, 1)
    assert (report["gpu"], report["weights"], report["packages"]) == (None, 5, {"numpy": metadata.version("numpy")})
    assert node.sentence(report, lock).startswith("node: CPU; 1 packages as in ")


def test_weights_are_unknown_before_the_demo_made_them() -> None:
    assert node.weights_of(None) == 0
