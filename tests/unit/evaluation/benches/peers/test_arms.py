"""Which peers there are, what is said of one that is not installed, and what one process finds in its environment."""

from ekiden.evaluation.benches.peers.arms import ARMS
from ekiden.evaluation.benches.peers.environments import SET_UP, Environments


def test_an_arm_that_is_not_installed_names_the_command_that_installs_it(tmp_path):
    environments = Environments(tmp_path)
    told = {name: arm.missing(environments) for name, arm in ARMS.items() if arm.peer != "genai"}
    assert told["vllm-w8a8"] == "not installed; `make setup-peer-vllm` installs it"
    assert told["llamacpp-q8_0"] == "not installed; `make setup-peer-llamacpp` installs it"
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / ".ready").touch()
    assert ARMS["vllm-w8a8"].missing(environments) is None


def test_every_peer_has_a_command_that_sets_it_up():
    assert {arm.peer for arm in ARMS.values()} == set(SET_UP)


def test_a_peer_sees_no_setting_of_ours_and_asks_no_hub(tmp_path, monkeypatch):
    monkeypatch.setenv("EKIDEN_API_KEY", "secret")
    found = Environments(tmp_path).variables("llamacpp", 3)
    assert not any(name.startswith("EKIDEN_") for name in found)
    assert (found["OMP_NUM_THREADS"], found["HF_HUB_OFFLINE"]) == ("3", "1")
    assert found["LLAMA_CPP_LIB_PATH"] == str(tmp_path / "llamacpp" / "bin")
