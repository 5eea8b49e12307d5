"""Files that the real NeMo wrote (tests/contract/nemo/write.py), and what somebody made of them."""

import gzip
import io
import json
import pickle
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from sentencepiece import SentencePieceTrainer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from equipoise.checkpoints import files, nemo
from equipoise.checkpoints.nemo import open_nemo
from tests.equipoise.checkpoints.samples import made, refused, same
from tests.refusals import holds

FIXTURES = Path(__file__).parent / "fixtures" / "nemo"
#: NeMo 1's, and how many rows of their embeddings are words; one has its tokenizer in it.
ARCHIVES = {"flat": 300, "mp_rank": 64, "tp_pp_rank": 64, "torch_dist": 64}
WITHOUT_TOKENIZER = [case for case in ARCHIVES if case != "flat"]
WORDS = ("model.embed_tokens.weight", "lm_head.weight")


@pytest.fixture
def base(tmp_path):
    """A model with a tokenizer, for a case that has none."""

    def make(case):
        if case not in WITHOUT_TOKENIZER:
            return None
        folder = tmp_path / "base"
        shutil.copytree(FIXTURES / "nemo_2" / "model" / "context" / "nemo_tokenizer", folder)
        shutil.copy(FIXTURES / case / "config.json", folder)
        return folder

    return make


@pytest.fixture
def unpacked(tmp_path):
    """A case as a folder that can be changed."""

    def unpack(case):
        folder = tmp_path / "unpacked"
        with tarfile.open(FIXTURES / case / "model.nemo") as tar:
            tar.extractall(folder)
        return folder

    return unpack


def expected(case, words):
    """The tensors that NeMo's weights are from, without the rows that it fills up."""
    tensors = load_file(FIXTURES / case / "expected.safetensors")
    return {n: t[:words].clone() if n in WORDS else t for n, t in tensors.items()}


def packed(folder, path, mode="w"):
    with tarfile.open(path, mode) as tar:
        for member in sorted(folder.rglob("*")):
            tar.add(member, member.relative_to(folder), recursive=False)
    return path


def change_config(folder, **changes):
    path = folder / "model_config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))


def answers_as_in_nemo(folder, case, words):
    recorded = load_file(FIXTURES / case / "logits.safetensors")
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(folder)(recorded["ids"]).logits
    assert torch.allclose(logits, recorded["nemo"][..., :words], atol=1e-4)


def same_settings(folder, case, words):
    """What changes the result of a model is as in the one that the weights are from."""
    ours, theirs = (AutoConfig.from_pretrained(path) for path in (folder, FIXTURES / case))
    assert ours.vocab_size == words
    for key in (
        *("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "hidden_act"),
        *("num_attention_heads", "num_key_value_heads", "max_position_embeddings", "head_dim"),
        *("rms_norm_eps", "rope_parameters", "tie_word_embeddings"),
    ):
        assert getattr(ours, key, None) == getattr(theirs, key, None) or key == "head_dim", key


class TestWhatNemoWrote:
    @pytest.mark.parametrize("case", ARCHIVES)
    def test_becomes_the_model_that_it_was(self, case, base, tmp_path):
        weights = made(FIXTURES / case / "model.nemo", tmp_path / "out", base(case))
        assert same(weights, expected(case, ARCHIVES[case]))
        same_settings(tmp_path / "out", case, ARCHIVES[case])
        answers_as_in_nemo(tmp_path / "out", case, ARCHIVES[case])
        AutoTokenizer.from_pretrained(tmp_path / "out")

    @pytest.mark.parametrize("change", [{"num_key_value_heads": 1}, {"rms_norm_eps": 0.25}])
    @pytest.mark.parametrize("case", WITHOUT_TOKENIZER)
    def test_another_base_is_refused_by_name(self, case, change, base, tmp_path):
        config = base(case) / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | change))
        message = refused(FIXTURES / case / "model.nemo", tmp_path / "out", config.parent)
        assert f"model.nemo/model_config.yaml states another model than {config}" in message
        assert next(iter(change)) in message

    @pytest.mark.parametrize("case", WITHOUT_TOKENIZER)
    def test_its_own_configuration(self, case, unpacked, tmp_path):
        config = open_nemo(unpacked(case)).config.hugging_face(64)
        (tmp_path / "config.json").write_text(json.dumps(config))
        same_settings(tmp_path, case, 64)

    @pytest.mark.parametrize("level", ["", "weights"])
    def test_a_folder_of_nemo_2(self, level, tmp_path):
        weights = made(FIXTURES / "nemo_2" / "model" / level, tmp_path / "out")
        assert same(weights, expected("nemo_2", 64))
        same_settings(tmp_path / "out", "nemo_2", 64)
        answers_as_in_nemo(tmp_path / "out", "nemo_2", 64)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
        assert tokenizer.decode(tokenizer("a dose")["input_ids"]).replace(" ", "") == "adose"
        assert AutoConfig.from_pretrained(tmp_path / "out").eos_token_id == tokenizer.eos_token_id

    @pytest.mark.parametrize("mode", ["w", "w:gz"])
    def test_packed_otherwise(self, mode, unpacked, base, tmp_path):
        """In gzip, as older releases did, and without ./ before the names."""
        path = packed(unpacked("tp_pp_rank"), tmp_path / "old.nemo", mode)
        weights = made(path, tmp_path / "out", base("tp_pp_rank"))
        assert same(weights, expected("tp_pp_rank", 64))

    @pytest.mark.parametrize("case", ARCHIVES)
    def test_not_packed(self, case, unpacked, base, tmp_path):
        weights = made(unpacked(case), tmp_path / "out", base(case))
        assert same(weights, expected(case, ARCHIVES[case]))

    def test_its_tokenizer_reads_as_sentencepiece_does(self, tmp_path):
        made(FIXTURES / "flat" / "model.nemo", tmp_path / "out")
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
        for text, ids in json.loads((FIXTURES / "sentences.json").read_text()).items():
            assert tokenizer(text)["input_ids"] == [tokenizer.bos_token_id, *ids], text
        assert AutoConfig.from_pretrained(tmp_path / "out").eos_token_id == tokenizer.eos_token_id

    @pytest.mark.parametrize(
        ("settings", "told"),
        [
            ({"model_type": "unigram"}, "nemo.other-tokenizer | 'The"),
            ({"model_type": "bpe"}, "nemo.other-tokenizer | 'The"),
            ({"bos_piece": "<start>"}, "nemo.no-special-pieces"),
            ({"eos_id": -1}, "nemo.no-special-pieces"),
        ],
    )
    def test_a_tokenizer_that_transformers_reads_otherwise(
        self, settings, told, unpacked, tmp_path
    ):
        folder = unpacked("flat")
        model = next(folder.glob("*.model"))
        sentences = ["the patient takes ten milligrams of it every day"]
        words = {"model_prefix": str(tmp_path / "other"), "vocab_size": 23, "minloglevel": 2}
        SentencePieceTrainer.train(sentence_iterator=iter(sentences), **words | settings)
        shutil.copy(tmp_path / "other.model", model)
        assert holds(refused(folder, tmp_path / "out"), told)

    def test_state_for_8_bit_numbers_is_left_out(self, unpacked, tmp_path):
        """Transformer Engine's, which is bytes between the weights."""
        folder = unpacked("flat")
        state = torch.load(folder / "model_weights.ckpt", weights_only=True)
        state["model.decoder.layers.0.mlp.linear_fc1._extra_state"] = io.BytesIO(b"scales")
        state["model.rotary_pos_emb.inv_freq"] = torch.ones(2)
        torch.save(state, folder / "model_weights.ckpt")
        assert same(made(folder, tmp_path / "out"), expected("flat", 300))

    def test_what_was_unpacked_is_gone(self, tmp_path):
        made(FIXTURES / "flat" / "model.nemo", tmp_path / "out")
        assert [path.name for path in tmp_path.iterdir()] == ["out"]


class TestWhatCannotBeSaid:
    @pytest.mark.parametrize(
        ("key", "value", "told"),
        [
            ("num_moe_experts", 8, "stated.unknown-form | num_moe_experts | 8"),
            ("activation", "gelu", "stated.unknown-form | activation_func | 'gelu'"),
            ("normalization", "layernorm1p", "stated.unknown-form | normalization | 'layernorm1p'"),
            ("rotary_percentage", 0.5, "stated.unknown-form | rotary_percent | 0.5"),
            (
                "position_embedding_type",
                "learned_absolute",
                "stated.unknown-form | position_embedding_type",
            ),
            ("bias", True, "stated.unknown-form | add_bias_linear | True"),
            ("mcore_gpt", False, "stated.unknown-form | mcore_gpt | False"),
            ("multi_latent_attention", True, "stated.unknown-form | multi_latent_attention"),
            (
                "mcore_customization_config",
                {"final_logit_softcapping": 30.0},
                "stated.unknown-form",
            ),
            ("qkv_bias", True, "verify.missing-tensors | model.layers.0.self_attn.q_proj.bias"),
            ("num_layers", "many", "stated.invalid-count | num_layers | 'many'"),
            ("num_layers", 3, "megatron.missing-tensor"),
            ("rotary_base", float("nan"), "stated.number-below-zero | rotary_base | nan"),
            ("hidden_size", 32, "megatron.other-heads | 32"),
        ],
    )
    def test_a_setting(self, key, value, told, unpacked, tmp_path):
        folder = unpacked("flat")
        change_config(folder, **{key: value})
        assert holds(refused(folder, tmp_path / "out"), told)

    def test_a_default_that_is_no_llama_s(self, unpacked, tmp_path):
        folder = unpacked("flat")
        path = folder / "model_config.yaml"
        settings = yaml.safe_load(path.read_text())
        del settings["bias"]
        path.write_text(yaml.safe_dump(settings))
        assert holds(
            refused(folder, tmp_path / "out"), "stated.unknown-form | add_bias_linear | True"
        )

    def test_no_tokenizer(self, tmp_path):
        message = refused(FIXTURES / "mp_rank" / "model.nemo", tmp_path / "out")
        assert holds(message, "nemo.no-tokenizer | model.nemo | /tmp/nemo/tokenizer")
        assert "--base" in message

    def test_nemo_2_without_its_defaults(self, tmp_path):
        folder = tmp_path / "nemo_2"
        shutil.copytree(FIXTURES / "nemo_2" / "model", folder)
        (folder / "context" / "model.yaml").unlink()
        assert holds(refused(folder, tmp_path / "out"), "nemo.unstated-default | model.yaml")

    def test_a_format_of_before_torch_dist(self, unpacked, tmp_path):
        folder = unpacked("torch_dist")
        (folder / "model_weights" / "metadata.json").write_text('{"sharded_backend": "zarr"}')
        assert holds(refused(folder, tmp_path / "out"), "torch-dist.unknown-backend | zarr")


class TestDamaged:
    @pytest.mark.parametrize(
        "name", ["tp_rank_01_pp_rank_000", "tp_rank_01_pp_rank_001", "tp_rank_00_pp_rank_001"]
    )
    def test_a_rank_is_missing(self, name, unpacked, tmp_path):
        folder = unpacked("tp_pp_rank")
        shutil.rmtree(folder / name)
        place = f"({int(name[8:10])}, {int(name[-3:])})"
        assert f"no model_weights.ckpt of the rank {place}" in refused(folder, tmp_path / "out")

    def test_all_of_a_stage_are_missing(self, unpacked, tmp_path):
        folder = unpacked("tp_pp_rank")
        for rank in range(2):
            shutil.rmtree(folder / f"tp_rank_{rank:02}_pp_rank_001")
        assert holds(refused(folder, tmp_path / "out"), "nemo.missing-rank | (0, 1)")

    def test_ranks_of_two_checkpoints(self, unpacked, base, tmp_path):
        folder = unpacked("mp_rank")
        path = folder / "mp_rank_01" / "model_weights.ckpt"
        state = torch.load(path, weights_only=True)
        state["model.decoder.final_layernorm.weight"] += 1
        torch.save(state, path)
        message = refused(folder, tmp_path / "out", base("mp_rank"))
        assert holds(message, "nemo.mixed-ranks | final_layernorm.weight differs between ranks")

    @pytest.mark.parametrize("case", ["flat", "torch_dist"])
    def test_an_archive_is_cut_off(self, case, tmp_path):
        data = (FIXTURES / case / "model.nemo").read_bytes()
        path = tmp_path / "short.nemo"
        path.write_bytes(data[: len(data) // 2])
        assert f"{path} cannot be unpacked" in refused(path, tmp_path / "out")

    def test_gzip_is_cut_off(self, unpacked, tmp_path):
        path = packed(unpacked("flat"), tmp_path / "old.nemo", "w:gz")
        path.write_bytes(path.read_bytes()[:-2000])
        assert holds(refused(path, tmp_path / "out"), "archive.unpackable")

    def test_weights_are_cut_off_within_the_archive(self, unpacked, tmp_path):
        folder = unpacked("flat")
        weights = folder / "model_weights.ckpt"
        weights.write_bytes(weights.read_bytes()[:-3000])
        path = packed(folder, tmp_path / "model.nemo")
        message = refused(path, tmp_path / "out")
        assert f"{path}/model_weights.ckpt is no file of torch's, or is cut off" in message

    def test_no_archive(self, tmp_path):
        for content in (b"", b"text" * 1000, gzip.compress(b"text" * 1000)):
            (tmp_path / "file").write_bytes(content)
            assert str(tmp_path / "file") in refused(tmp_path / "file", tmp_path / "out")


class TestHostile:
    """Nothing is written outside of the scratch folder, and nothing in a file is run."""

    def packed_with(self, tmp_path, *members, mode="w"):
        """The real archive with more members at its end."""
        path = tmp_path / "hostile.nemo"
        with (
            tarfile.open(FIXTURES / "flat" / "model.nemo") as real,
            tarfile.open(path, mode) as tar,
        ):
            for member in real:
                tar.addfile(member, real.extractfile(member) if member.isfile() else None)
            for member, data in members:
                tar.addfile(member, io.BytesIO(data) if data else None)
        return path

    def member(self, name, data=b"", **fields):
        info = tarfile.TarInfo(name)
        info.size = len(data)
        for key, value in fields.items():
            setattr(info, key, value)
        return info, data

    @pytest.mark.parametrize("mode", ["w", "w:gz"])
    @pytest.mark.parametrize(
        ("name", "fields", "told"),
        [
            ("../escaped", {}, "archive.path-outside"),
            ("inner/../../escaped", {}, "archive.path-outside"),
            ("{tmp}/escaped", {}, "archive.path-outside"),
            ("link", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "archive.special-file"),
            (
                "link",
                {"type": tarfile.LNKTYPE, "linkname": "model_config.yaml"},
                "archive.special-file",
            ),
            ("device", {"type": tarfile.CHRTYPE, "devmajor": 1}, "archive.special-file"),
            ("pipe", {"type": tarfile.FIFOTYPE}, "archive.special-file"),
            ("model_config.yaml", {}, "archive.repeated-name"),
            ("./././model_weights.ckpt", {}, "archive.repeated-name"),
        ],
    )
    def test_a_member(self, mode, name, fields, told, tmp_path):
        name = name.format(tmp=tmp_path)
        member = self.member(name, b"" if fields else b"bad", **fields)
        path = self.packed_with(tmp_path, member, mode=mode)
        message = refused(path, tmp_path / "out")
        assert holds(message, told)
        assert repr(name) in message
        assert [file.name for file in tmp_path.iterdir()] == [path.name]

    def test_a_header_that_names_more_than_the_disk_has(self, tmp_path):
        path = tmp_path / "liar.nemo"
        info, _ = self.member("model_weights.ckpt")
        info.size = 2**50
        path.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT)))
        assert holds(
            refused(path, tmp_path / "out"),
            "archive.full-disk | model_weights.ckpt | 1,125,899.91 GB",
        )

    def test_a_header_whose_extension_would_fill_the_memory(self, tmp_path):
        """tarfile reads names that are too long for a header in one piece."""
        for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
            info, _ = self.member("extension", type=kind)
            info.size = 2**32
            path = tmp_path / "liar.nemo"
            path.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT)))
            assert holds(
                refused(path, tmp_path / "out"),
                "archive.unpackable | a header that is 4,294,967,296 bytes long",
            )

    @pytest.mark.parametrize("name", ["a_before", "zeros"])
    def test_a_bomb(self, name, unpacked, tmp_path, monkeypatch):
        """More than the configuration's model can take; it may be before the configuration too."""
        monkeypatch.setattr(nemo, "_MOST_BESIDE", 10**6)
        monkeypatch.setattr(nemo, "_MOST_WORDS", 10**3)
        folder = unpacked("flat")
        (folder / name).write_bytes(bytes(3 * 10**6))
        path = packed(folder, tmp_path / "bomb.nemo", "w:gz")
        assert path.stat().st_size < 10**5
        message = refused(path, tmp_path / "out")
        assert holds(message, "archive.oversize")

    def test_a_real_archive_is_far_from_the_bound(self, unpacked):
        most = nemo.archive_allowance(unpacked("flat"))
        assert most > 10 * (FIXTURES / "flat" / "model.nemo").stat().st_size

    def test_too_many_members(self, tmp_path, monkeypatch):
        monkeypatch.setattr(files, "_MOST_MEMBERS", 20)
        members = [self.member(f"file{number}") for number in range(30)]
        assert holds(
            refused(self.packed_with(tmp_path, *members), tmp_path / "out"),
            "archive.too-many-files | 20",
        )

    def test_a_pickle_that_runs_something(self, unpacked, tmp_path):
        class Runs:
            def __reduce__(self):
                return Path.touch, (tmp_path / "ran",)

        folder = unpacked("flat")
        torch.save({"model.decoder.x": Runs()}, folder / "model_weights.ckpt")
        assert holds(
            refused(folder, tmp_path / "out"), "torch-file.unreadable | model_weights.ckpt"
        )
        assert not (tmp_path / "ran").exists()

    def test_a_pickle_without_a_zip_file(self, unpacked, tmp_path):
        folder = unpacked("flat")
        (folder / "model_weights.ckpt").write_bytes(pickle.dumps({"a": 1}))
        assert holds(refused(folder, tmp_path / "out"), "torch-file.no-archive")

    def test_weights_that_are_a_bomb(self, unpacked, tmp_path):
        folder = unpacked("flat")
        weights = folder / "model_weights.ckpt"
        with (
            zipfile.ZipFile(weights) as whole,
            zipfile.ZipFile(folder / "small", "w", zipfile.ZIP_DEFLATED) as small,
        ):
            for member in whole.infolist():
                small.writestr(member.filename, whole.read(member))
        (folder / "small").rename(weights)
        assert holds(refused(folder, tmp_path / "out"), "torch-file.compressed-archive")

    def test_a_tensor_that_is_larger_than_its_numbers(self, unpacked, tmp_path):
        folder = unpacked("flat")
        state = torch.load(folder / "model_weights.ckpt", weights_only=True)
        state["model.output_layer.weight"] = torch.zeros(1).expand(10**6, 16)
        torch.save(state, folder / "model_weights.ckpt")
        message = refused(folder, tmp_path / "out")
        assert holds(message, "torch-file.short-storage | output_layer.weight | (1000000, 16)")

    def test_a_configuration_that_runs_something(self, unpacked, tmp_path):
        folder = unpacked("flat")
        with (folder / "model_config.yaml").open("a") as file:
            file.write(f"more: !!python/object/apply:os.mkdir [{tmp_path / 'ran'}]\n")
        assert holds(
            refused(folder, tmp_path / "out"), "checkpoint.damaged-yaml | model_config.yaml"
        )
        assert not (tmp_path / "ran").exists()

    def test_a_tokenizer_from_elsewhere(self, unpacked, tmp_path):
        folder = unpacked("flat")
        (tmp_path / "secret.model").write_text("secret")
        change_config(
            folder, tokenizer={"library": "sentencepiece", "model": "nemo:../secret.model"}
        )
        assert holds(refused(folder, tmp_path / "out"), "nemo.missing-tokenizer-model")
