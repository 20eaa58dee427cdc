"""What the user calls a model, the files found, and their description."""

import json
import shutil

import pytest

from ekiden.models.errors import ModelError
from ekiden.models.load import describe, open_checkpoint
from ekiden.models.resolve import resolve
from tests.unit.models.gguf_files import metadata, write_gguf


@pytest.fixture
def folder(tmp_path, reference_dir):
    """A Hugging Face folder that a test may spoil."""
    return shutil.copytree(reference_dir / "llama", tmp_path / "my-model")


def loaded(path, **options):
    return describe(resolve(str(path), path.parent / "cache"), **options)


class TestResolve:
    def test_gguf_file(self, tmp_path):
        path = write_gguf(tmp_path / "Some-Model.Q8_0.gguf")
        files = resolve(str(path), tmp_path)
        assert (files.kind, files.name, files.weights) == ("gguf", "Some-Model.Q8_0", (path,))

    def test_hugging_face_folder(self, folder, tmp_path):
        files = resolve(str(folder), tmp_path)
        assert (files.kind, files.name, files.root) == ("safetensors", "my-model", folder)
        assert files.weights == (folder / "model.safetensors",)
        assert files.generation_config == folder / "generation_config.json"

    def test_openvino_folder(self, folder, tmp_path):
        (folder / "model.safetensors").unlink()
        for name in ("openvino_model.xml", "openvino_model.bin", "openvino_tokenizer.xml", "openvino_tokenizer.bin"):
            (folder / name).write_bytes(b"x")
        files = resolve(str(folder), tmp_path)
        assert files.kind == "openvino"
        assert files.weights == (folder / "openvino_model.xml", folder / "openvino_model.bin")
        description = describe(files)
        assert description.spec is None
        assert (description.vocab_size, description.max_position_embeddings) == (264, 256)
        with pytest.raises(ModelError, match="load the graph"):
            open_checkpoint(files)
        (folder / "openvino_model.bin").unlink()
        with pytest.raises(ModelError, match=r"openvino_model\.bin: missing"):
            resolve(str(folder), tmp_path)

    def test_folder_with_one_gguf_file(self, tmp_path):
        model = tmp_path / "m"
        model.mkdir()
        write_gguf(model / "a.gguf")
        assert resolve(str(model), tmp_path).name == "m"
        write_gguf(model / "b.gguf")
        with pytest.raises(ModelError, match=r"2 \.gguf files \(a.gguf, b.gguf\); give the path of one"):
            resolve(str(model), tmp_path)

    @pytest.mark.parametrize("needed", ["config.json", "tokenizer.json"])
    def test_folder_without_a_needed_file(self, folder, tmp_path, needed):
        (folder / needed).unlink()
        with pytest.raises(ModelError, match=f"{needed} is missing and needed"):
            resolve(str(folder), tmp_path)

    def test_older_tokenizer_files_get_a_hint(self, folder, tmp_path):
        (folder / "tokenizer.json").rename(folder / "tokenizer.model")
        with pytest.raises(ModelError, match="save_pretrained"):
            resolve(str(folder), tmp_path)

    def test_pickled_weights_are_never_opened(self, folder, tmp_path):
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        with pytest.raises(ModelError, match="save them as safetensors"):
            resolve(str(folder), tmp_path)

    @pytest.mark.parametrize("model", ["", "nope", "a\0b", "/no/such/place", "./x/y", "../z", "no/such.gguf", "a/b/c"])
    def test_anything_else_names_it_and_lists_what_is_accepted(self, tmp_path, model):
        with pytest.raises(ModelError) as caught:
            resolve(model, tmp_path)
        assert repr(model) in str(caught.value)
        assert "smollm2-135m" in str(caught.value)
        assert "OpenVINO folder" in str(caught.value)

    def test_empty_folder_and_foreign_file(self, tmp_path):
        with pytest.raises(ModelError, match="holds no model"):
            resolve(str(tmp_path), tmp_path)
        (tmp_path / "x.txt").write_text("x")
        with pytest.raises(ModelError, match=r"must end in \.gguf"):
            resolve(str(tmp_path / "x.txt"), tmp_path)


class TestDescribe:
    def test_a_folder(self, folder):
        description = loaded(folder)
        assert description.files.name == "my-model"
        assert description.spec is not None
        assert description.spec.family == "llama"
        assert description.tokenizer.eos_token_ids == {258}
        assert description.tokenizer.bos_token_id == 256
        assert description.generation_defaults == {"temperature": 0.7}
        assert description.warnings == []
        assert set(description.digests) == {"weights", "tokenizer", "config", "template"}
        assert description.chat_template is not None
        assert description.chat_template.render([{"role": "user", "content": "x"}]).startswith("<|im_start|>user\nx")
        assert open_checkpoint(resolve(str(folder), folder.parent)).tensor("model.norm.weight").shape == (64,)

    def test_every_end_token_that_is_named(self, folder):
        (folder / "generation_config.json").write_text('{"eos_token_id": [259, 260, 99999, "x"]}')
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 261}))
        assert loaded(folder).tokenizer.eos_token_ids == {258, 259, 260, 261}

    def test_template_files_in_order(self, folder):
        message = [{"role": "user", "content": "x"}]
        (folder / "chat_template.json").write_text('{"chat_template": "from json"}')
        assert loaded(folder).chat_template.render(message) == "from json"
        (folder / "chat_template.jinja").write_text("from jinja")
        assert loaded(folder).chat_template.render(message) == "from jinja"
        (folder / "mine.jinja").write_text("mine {{ eos_token }}")
        own = loaded(folder, chat_template_path=folder / "mine.jinja")
        assert own.chat_template.render(message) == "mine <|im_end|>"
        assert own.digests["template"] != loaded(folder).digests["template"]

    def test_named_templates(self, folder):
        templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
        template = loaded(folder).chat_template
        assert template.render([]) == "plain"
        assert template.render([], tools=[{}]) == "tools"

    def test_the_users_template_must_work_and_the_models_own_need_not(self, folder):
        (folder / "chat_template.jinja").write_text("{% if %}")
        description = loaded(folder)
        assert description.chat_template is None
        assert any("chat is refused" in warning for warning in description.warnings)
        with pytest.raises(ModelError, match="--chat-template"):
            loaded(folder, chat_template_path=folder / "chat_template.jinja")
        with pytest.raises(ModelError, match="cannot be read"):
            loaded(folder, chat_template_path=folder / "absent.jinja")

    def test_generation_defaults_of_ones_own(self, folder):
        own = folder / "mine.json"
        own.write_text('{"top_k": 5, "top_p": 0.5, "repetition_penalty": 1.1, "temperature": null, "min_p": "x"}')
        description = loaded(folder, generation_config_path=own)
        assert description.generation_defaults == {"top_k": 5, "top_p": 0.5, "repetition_penalty": 1.1}
        assert any("min_p" in warning for warning in description.warnings)
        assert 258 in description.tokenizer.eos_token_ids

    @pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
    @pytest.mark.parametrize("content", ["", "{", "[]", "[" * 100_000, "\ud800"])
    def test_damaged_json(self, folder, name, content):
        (folder / name).write_bytes(content.encode("utf-8", "surrogatepass"))
        with pytest.raises(ModelError, match=name) as caught:
            loaded(folder)
        assert "\n" not in str(caught.value)

    def test_a_tokenizer_of_another_model(self, folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))
        with pytest.raises(ModelError, match="do not belong together"):
            loaded(folder)

    def test_weights_that_do_not_fit_the_configuration(self, folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
        with pytest.raises(ModelError, match=r"model\.layers\.2\..* is missing"):
            open_checkpoint(resolve(str(folder), folder.parent))
        (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 97}))
        with pytest.raises(ModelError, match="its configuration says"):
            open_checkpoint(resolve(str(folder), folder.parent))


class TestDigests:
    def test_change_with_the_file_and_only_then(self, tmp_path):
        path = write_gguf(tmp_path / "m.gguf")
        first = loaded(path).digests
        assert loaded(path).digests == first
        write_gguf(path, metadata(general__name="other"))
        assert loaded(path).digests["weights"] != first["weights"]

    def test_are_remembered_by_size_and_time(self, tmp_path, monkeypatch):
        path = write_gguf(tmp_path / "m.gguf")
        first = loaded(path).digests

        def no_hashing(*_: object) -> None:
            raise AssertionError("hashed again")

        monkeypatch.setattr("hashlib.file_digest", no_hashing)
        assert loaded(path).digests == first
        path.touch()
        with pytest.raises(AssertionError, match="hashed again"):
            loaded(path)

    @pytest.mark.parametrize("content", ["", "[]", '{"a": 5}', "\x00"])
    def test_a_damaged_memory_is_no_matter(self, tmp_path, content):
        path = write_gguf(tmp_path / "m.gguf")
        first = loaded(path).digests
        (tmp_path / "cache" / "digests.json").write_text(content)
        assert loaded(path).digests == first

    def test_a_cache_that_cannot_be_written_is_no_matter(self, tmp_path):
        path = write_gguf(tmp_path / "m.gguf")
        (tmp_path / "cache").write_text("a file in the place of the folder")
        assert loaded(path).digests["weights"]
