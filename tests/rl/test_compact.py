"""The compact file: bit for bit, small, and safe to read from strangers."""

import json
import math
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
import torch

from retable.platform.errors import UserError
from retable.platform.train.worker import Worker
from retable.tasks.rl.config import Bc, Config, Dense, Erk, Random, Snip
from retable.tasks.rl.formats.compact import LARGEST, START, deployable, pack, read_about, unpack
from retable.tasks.rl.formats.sizes import file_bytes
from retable.tasks.rl.learner import OfflineLearner
from retable.tasks.rl.learning.timing import RandomTransitions
from retable.tasks.rl.model import bc_action, bcq_action, build, load, unstack
from tests.rl.toys import config, train


def bits(tensor):
    return tensor.contiguous().numpy().view(np.uint32)


def same_bits(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == torch.float32 and found[name].shape == value.shape, name
        assert np.array_equal(bits(found[name]), bits(value)), name


def from_bits(values, *shape):
    return torch.from_numpy(np.array(values, np.uint32).view(np.float32).reshape(*shape or (-1,)).copy())


def sparse(seed, *shape, density=0.05):
    source = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=source) * (torch.rand(shape, generator=source) < density)


SPECIAL = {
    "NaNs with payloads, infinities, -0.0, subnormals": from_bits(
        [0, 0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x80000000, 0x7F800000, 0xFF800000, 1, 0x807FFFFF, 0x3F800000]
    ),
    "nothing kept": torch.zeros(7, 300),
    "one kept at the end": torch.cat((torch.zeros(9999), torch.ones(1))),
    "one kept at the start": torch.cat((torch.ones(1), torch.zeros(9999))),
    "everything kept": torch.ones(20, 30),
    "no rows": torch.empty(0, 5),
    "no columns": torch.empty(5, 0),
    "no entries": torch.empty(0),
    "one entry": torch.tensor([2.0]),
    "not contiguous": torch.randn(20, 30, generator=torch.Generator().manual_seed(1)).T,
}


@pytest.mark.parametrize("name", SPECIAL)
def test_every_bit_comes_back(name):
    same_bits(unpack(pack({"w": SPECIAL[name]}), "x"), {"w": SPECIAL[name]})


@pytest.mark.parametrize("zeros", [0, 1, 253, 254, 255, 256, 509, 510, 511, 765])
def test_gaps_of_any_length_come_back(zeros):
    values = torch.cat((torch.zeros(zeros), torch.ones(1), torch.zeros(zeros), torch.ones(1), torch.zeros(zeros)))
    same_bits(unpack(pack({"w": values}), "x"), {"w": values})


@pytest.mark.parametrize("density", [0, 0.001, 0.05, 0.5, 1])
def test_random_bits_come_back_at_any_density(density):
    numbers = np.random.default_rng(int(1000 * density))
    weights = {}
    for i in range(20):
        shape = numbers.integers(0, 60, size=1 + i % 2)
        drawn = numbers.integers(0, 1 << 32, size=shape, dtype=np.uint32) * (numbers.random(shape) < density)
        weights[f"vae.e{i}.weight"] = torch.from_numpy(drawn.astype(np.uint32).view(np.float32))
    same_bits(unpack(pack(weights), "x"), weights)


def naive(data):
    """Read a float32 file as its documentation says, entry by entry."""
    magic, version, length, checksum = struct.unpack("<4sB3xII", data[:16])
    assert (magic, version, checksum) == (b"RTSN", 1, zlib.crc32(data[16:]))
    header, at, found = json.loads(data[16 : 16 + length]), 16 + length, {}
    for name, shape, kept, gaps, _, lengths in header["tensors"]:
        streams = []
        for number, (size, whole) in enumerate(zip(lengths, [gaps, *[kept] * 4], strict=True)):
            raw = data[at : at + size]
            streams.append(raw if size == whole else zlib.decompress(raw, wbits=-15))
            assert len(streams[number]) == whole
            at += size
        flat, position, entry = [0] * math.prod(shape), 0, 0
        for gap in streams[0]:
            position += gap
            if gap < 255:
                rotated = int.from_bytes(bytes(stream[entry] for stream in streams[1:]), "little")
                flat[position] = rotated >> 1 | (rotated & 1) << 31
                position, entry = position + 1, entry + 1
        found[name] = from_bits(flat, *shape)
    assert at == len(data)
    return found


def test_the_layout_is_the_documented_one():
    weights = {"a": sparse(0, 40, 50), "b": sparse(1, 30, density=1), "c": sparse(2, 30, 100, density=0.002)}
    same_bits(naive(pack(weights)), weights)


@pytest.fixture(scope="module")
def trained():
    """Give what a pruned run of the paper's sizes weighs after three updates, and a dense one at first."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    found = {}
    for prune in (Snip(), Dense()):
        settings = Config(prune=prune)
        data = RandomTransitions(settings, 17, 6)
        learner = OfflineLearner([settings], data, Worker())
        for _ in range(0 if prune == Dense() else 3):
            learner.step({name: value[None] for name, value in data.sample(0, 100).items()})
        networks = {}
        for name, value in learner.state_dict()[0]["weights"].items():
            network, parameter = name.split(".", 1)
            networks.setdefault(network, {})[parameter] = value
        found[type(prune).__name__] = networks
    torch.set_num_threads(before)
    return found


@pytest.mark.parametrize("network", ["actor", "critic", "vae"])
def test_at_95_percent_files_are_more_than_14_times_smaller(trained, network):
    weights = trained["Snip"][network]
    data = pack(weights)
    assert file_bytes(weights) >= 14 * len(data)
    same_bits(unpack(data, "x"), weights)
    lossless = len(data)
    assert len(pack(weights, "int8")) < len(pack(weights, "float16")) < lossless


@pytest.mark.parametrize("network", ["actor", "critic", "vae"])
def test_positions_take_little_more_than_their_entropy(trained, network):
    bound = 0.0
    for value in trained["Snip"][network].values():
        share = float((bits(value) != 0).mean())
        if 0 < share < 1:
            bound -= value.numel() * (share * math.log2(share) + (1 - share) * math.log2(1 - share)) / 8
        bound += 4 * share * value.numel()
    assert len(pack(trained["Snip"][network])) < 1.02 * bound + 1024


@pytest.mark.parametrize("network", ["actor", "critic", "vae"])
def test_a_dense_network_is_no_larger_than_its_dense_file(trained, network):
    weights = trained["Dense"][network]
    assert len(pack(weights)) < file_bytes(weights)


def test_what_cannot_be_compressed_is_stored():
    drawn = np.random.default_rng(0).integers(1, 1 << 32, size=(300, 400), dtype=np.uint32)
    weights = {"w": torch.from_numpy(drawn.view(np.float32))}
    assert len(pack(weights)) < 4 * drawn.size + 1024


def test_float16_is_rounded_as_pytorch_rounds():
    values = torch.cat((sparse(0, 2000, density=0.5), torch.tensor([65504.0, 1e-8, -1e-8, -0.0, 6e-8, float("inf")])))
    assert torch.equal(unpack(pack({"w": values}, "float16"), "x")["w"], values.half().float())
    assert unpack(pack({"w": torch.tensor([float("nan")])}, "float16"), "x")["w"].isnan().all()


def test_int8_is_off_by_half_a_step_at_most_and_keeps_biases_in_float16():
    weights = {"w": sparse(0, 100, 80), "b": sparse(1, 100, density=1), "tiny": torch.full((2, 3), 1e-45)}
    weights["large"] = torch.tensor([[3e38, -3e38, 1e36]])
    found = unpack(pack(weights, "int8"), "x")
    for name in ("w", "tiny", "large"):
        step = weights[name].double().abs().max() / 127
        assert (found[name].double() - weights[name].double()).abs().max() <= step / 2 * 1.0001, name
    assert not found["w"][weights["w"] == 0].any()
    assert torch.equal(found["b"], weights["b"].half().float())


@pytest.mark.parametrize(
    ("precision", "value", "words"),
    [("float16", 65536.0, "float16"), ("int8", float("nan"), "int8"), ("int8", float("inf"), "int8")],
)
def test_values_that_a_precision_cannot_hold_are_refused(precision, value, words):
    with pytest.raises(UserError, match=rf"actor\.l1\.weight.*{words}.*use float32"):
        pack({"actor.l1.weight": torch.tensor([[1.0, value]])}, precision)


def test_other_tensors_and_too_many_numbers_are_refused():
    for tensor in (torch.zeros(2, 2, 2), torch.tensor(1.0), torch.zeros(3, dtype=torch.float64)):
        with pytest.raises(ValueError, match="float32 of one or two"):
            pack({"w": tensor})
    with pytest.raises(UserError, match="at most"):
        pack({"w": torch.zeros(1).expand(LARGEST + 1)})


def test_what_a_file_is_about_comes_back():
    about = {"environment": "Hopper", "values": [1, 2.5, None], "unicode": "ö"}
    assert read_about(pack({}, about=about), "x") == about
    assert unpack(pack({}), "x") == {}


SMALL = {"vae.d1.weight": sparse(0, 12, 30, density=0.2), "vae.d1.bias": sparse(1, 12, density=1)}


def test_every_truncation_is_refused_in_one_line():
    data = pack(SMALL, about={"policy": "bc"})
    for length in range(len(data)):
        with pytest.raises(UserError, match=r"^policy\.rtsn: .*retable rl export`$") as caught:
            unpack(data[:length], "policy.rtsn")
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="checksum"):
        unpack(data + b"\0", "policy.rtsn")


def test_every_changed_byte_is_noticed():
    data = pack(SMALL)
    numbers = np.random.default_rng(0)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= int(numbers.integers(1, 256))
        if 5 <= position < 8:  # padding
            continue
        with pytest.raises(UserError, match=r"^x: "):
            unpack(bytes(changed), "x")


def sealed(rest, header):
    return START.pack(b"RTSN", 1, header, zlib.crc32(rest)) + rest


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_a_forged_checksum_does_no_harm(precision):
    """What a stranger changes and seals again is refused in one line, or read as some tensors of a bounded size."""
    data = pack(SMALL, precision)
    length = START.unpack_from(data)[2]
    numbers, refused = np.random.default_rng(0), 0
    for _ in range(1500):
        rest = bytearray(data[START.size :])
        for position in numbers.integers(len(rest), size=numbers.integers(1, 4)):
            rest[position] = numbers.choice(list(b'0123456789-,.[]"e')) if position < length else numbers.integers(256)
        try:
            found = unpack(sealed(bytes(rest), length), "x")
        except UserError as error:
            refused += "\n" not in str(error)
        else:
            assert sum(value.numel() for value in found.values()) <= LARGEST
    assert 100 < refused < 1500


def forged(entry, streams=b"", **more):
    header = json.dumps({"precision": "float32", "about": {}, "tensors": [entry], **more}).encode()
    return sealed(header + streams, len(header))


def bomb(size):
    coder = zlib.compressobj(9, wbits=-15)
    return coder.compress(bytes(size)) + coder.flush()


HOSTILE = {
    "impossible tensor: many numbers": forged(["w", [1 << 20, 1 << 20], 0, 0, 1.0, [0] * 5]),
    "impossible tensor: a long empty side": forged(["w", [0, 10**30], 0, 0, 1.0, [0] * 5]),
    "impossible tensor: negative sides": forged(["w", [-2, -3], 0, 0, 1.0, [0] * 5]),
    "impossible tensor: three dimensions": forged(["w", [1, 1, 1], 0, 0, 1.0, [0] * 5]),
    "impossible tensor: more kept than there are": forged(["w", [2], 3, 3, 1.0, [3] * 5], b"\0" * 15),
    "impossible tensor: truth for a number": forged(["w", [True], 0, 0, 1.0, [0] * 5]),
    "impossible tensor: a name that clears the screen": forged(["\x1b[2J", [2], 0, 0, 1.0, [0] * 5]),
    "impossible tensor: a name of two lines": forged(["w\nx", [2], 0, 0, 1.0, [0] * 5]),
    "impossible tensor: too few streams": forged(["w", [2], 0, 0, 1.0, [0]]),
    "impossible tensor: a scale that is none": forged(["w", [2], 0, 0, float("nan"), [0] * 5]),
    "impossible tensor: no list": forged("w"),
    "contradict its shapes": forged(["w", [2], 1, 1, 1.0, [1] * 5], b"\x05\0\0\0\0"),
    "contradict its shapes: no entry": forged(["w", [600], 1, 2, 1.0, [2, 1, 1, 1, 1]], b"\xff\xff\0\0\0\0"),
    "another length than its header says": forged(["w", [2], 0, 0, 1.0, [0] * 5], b"\0"),
    "another length: a bomb": forged(
        ["w", [100_000], 100_000, 100_000, 1.0, [len(bomb(1 << 27)), *[len(bomb(100_000))] * 4]],
        bomb(1 << 27) + 4 * bomb(100_000),
    ),
    "lacks `precision`": sealed(b"{}", 2),
    "wrong `precision`": forged(["w", [2], 0, 0, 1.0, [0] * 5], precision=["float32"]),
    "two of its tensors have one name": forged(0, tensors=[["w", [1], 0, 0, 1.0, [0] * 5]] * 2),
    "claims more than": forged(0, tensors=[[str(i), [LARGEST], 0, 0, 1.0, [0] * 5] for i in range(3)]),
    "cannot be read": sealed(b"[" * 100_000, 100_000),
    "too long": sealed(b"{}", 1 << 31),
}


@pytest.mark.parametrize("reason", HOSTILE)
def test_a_hostile_file_is_refused_before_it_costs_memory(reason):
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=f"^evil: .*{reason.split(':')[0]}") as caught:
            unpack(HOSTILE[reason], "evil")
        assert "\n" not in str(caught.value)
        assert tracemalloc.get_traced_memory()[1] < 64 * len(HOSTILE[reason]) + (1 << 21)
    finally:
        tracemalloc.stop()


def deflated(byte, size):
    coder = zlib.compressobj(9, wbits=-15)
    return coder.compress(bytes([byte]) * size) + coder.flush()


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_an_extreme_file_that_is_read_costs_what_is_promised(precision):
    """Every number is kept, and each stream is a thousandth of what it stands for."""
    width = {"float32": 4, "float16": 2, "int8": 1}[precision]
    streams = [deflated(0, LARGEST), *[deflated(2, LARGEST)] * width]
    entry = ["w", [1 << 11, 1 << 11], LARGEST, LARGEST, 1.0, [len(stream) for stream in streams]]
    file = forged(entry, b"".join(streams), precision=precision)
    assert len(file) < 1 << 15
    tracemalloc.start()
    try:
        found = unpack(file, "x")["w"]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.numel() == LARGEST and bool((found == found[0, 0]).all()) and found[0, 0] > 0
    assert peak < 5 * 4 * LARGEST, peak / LARGEST


def test_gaps_as_long_as_a_file_may_have_come_back():
    """The sums behind positions are the largest where every gap is."""
    value = torch.zeros(1, LARGEST)
    value[0, 254::255] = 1
    same_bits(unpack(pack({"w": value}), "x"), {"w": value})


def test_other_kinds_and_later_versions_say_so():
    with pytest.raises(UserError, match="no file of sparse networks"):
        unpack(b"PK\x03\x04" + bytes(100), "x")
    with pytest.raises(UserError, match="version 2 of the format; this program reads version 1"):
        unpack(b"RTSN\x02" + pack(SMALL)[5:], "x")


@pytest.mark.parametrize(("policy", "choose"), [("bc", bc_action), ("bcq", bcq_action)])
def test_what_is_deployed_is_all_that_acting_needs(policy, choose):
    learner, _ = train([config(prune=Random(sparsity=0.5))], 2)
    whole = learner.state_dict()[0]["weights"]
    needed = deployable(whole, policy)
    assert len(needed) == {"bc": 6, "bcq": 18}[policy] < len(whole)
    networks = build([config()], 5, 2, 1.0)
    # What acting does not need may be anything.
    load(networks, 0, {name: torch.full_like(value, torch.nan) for name, value in whole.items()} | needed)
    source = torch.Generator().manual_seed(0)
    observations = torch.randn(1, 3, 5, generator=source)
    noise = torch.randn(1, 3 if policy == "bc" else 30, 4, generator=source)
    assert torch.equal(choose(networks, observations, noise), choose(learner.networks, observations, noise))


@pytest.mark.parametrize("algorithm", [Bc(), Config().algorithm])
def test_a_whole_run_comes_back(algorithm):
    learner, _ = train([config(prune=Erk(sparsity=0.9), algorithm=algorithm)], 2)
    weights = unstack(learner.networks, 0)
    same_bits(unpack(pack(weights), "x"), weights)
