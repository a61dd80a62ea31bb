"""Instructions of LLVM that numba does not find by itself, for the loops of `kernels`.

Each is a function that numba compiles into its caller. Some take tuples, which cost nothing there:

    entries  (values, places, begin, end): a part of a list; entry j is values[j], and where its
             kernel or window is, places[j]
    list     (values, places, end): a list to be appended to
    rule     what is listed: (skipped,) all values that are not equal to `skipped`; (skipped,
             winners, won, winner) those of them for which winners[won + channel] is `winner`
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from paddle_mnist.nn.compiler import Loop, processor, unique


def typed_intrinsic(function: Callable[..., Any]) -> Loop:
    """Decorate a function that writes instructions; numba's decorator has no types."""
    loop: Loop = intrinsic(function)
    return loop


# ------------------------------------------------------------------ calls and counters


@typed_intrinsic
def call_at(typing: Any, address: types.Integer, arguments: types.BaseTuple) -> tuple[Any, Any]:
    """Call a compiled function that returns nothing, by its address (`compiler.address_of`)."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
        kind = context.call_conv.get_function_type(types.none, arguments.types)
        function = builder.inttoptr(given[0], kind.as_pointer())
        values = cgutils.unpack_tuple(builder, given[1])
        context.call_conv.call_function(builder, function, types.none, arguments.types, values)
        return context.get_dummy_value()

    return types.void(address, arguments), generate


@typed_intrinsic
def next_number(typing: Any, counter: types.Array) -> tuple[Any, Any]:
    """Return the first number of `counter`, and add 1 to it, as one step for all threads.

    Each of them finds what the others have written before they did so.
    """

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
        (data,) = _flat(context, builder, signature.args, given)
        return builder.atomic_rmw("add", data, data.type.pointee(1), "acq_rel")

    return types.uint64(counter), generate


# ------------------------------------------------------------------ products in registers


def add_products_loop(size: int, count: int = 1) -> Loop:
    """Return a function that adds runs of `size` floats, each times a value of a list, to sums.

    add_products(sums, ats, entries, runs, shifts) computes, for j from begin to end,
    sums[at : at + size] += values[j] * runs[places[j] + shift :][:size], for as many runs of sums,
    each with its `at` and its `shift`, as `count` says. The sums stay in registers over all j. LLVM
    does not find this for every size, so it is given the vectors.
    """
    groups = _groups(size, count)

    def add_products(
        typing: Any,
        sums: types.Array,
        ats: types.BaseTuple,
        entries: types.BaseTuple,
        runs: types.Array,
        shifts: types.BaseTuple,
    ) -> tuple[Any, Callable[..., Any]]:
        signature = types.void(sums, ats, entries, runs, shifts)
        return signature, lambda *generation: _add_products(groups, count, *generation)

    return typed_intrinsic(unique(add_products))


def _groups(size: int, count: int) -> list[list[tuple[int, int]]]:
    """Divide a run into vectors, each a place and a width, in groups that fit in the registers."""
    vectors, at = [], 0
    while at < size:
        width = min(16, 1 << (size - at).bit_length() - 1)
        vectors.append((at, width))
        at += width
    # of 32 registers for 16 floats, or of 16 for 8 floats, of which a vector takes two
    most = 20 if "+avx512f" in processor()[1] else 7
    most //= count
    return [vectors[k : k + most] for k in range(0, len(vectors), most)]


def _add_products(
    groups: list[list[tuple[int, int]]],
    count: int,
    context: Any,
    builder: ir.IRBuilder,
    signature: Any,
    arguments: Any,
) -> Any:
    """Write LLVM's instructions of `add_products`, for each group a loop over the values.

    numba marks them as it does its own, so that a product and its sum become one instruction.
    """
    data = _flat(context, builder, signature.args, arguments)
    sums, *ats = data[: count + 1]
    values, places, begin, end, runs, *shifts = data[count + 1 :]

    def pointer(array: Any, place: Any, offset: int, width: int) -> Any:
        return _vector_at(builder, array, builder.add(place, place.type(offset)), width)

    for group in groups:
        targets = [(at, *vector) for at in ats for vector in group]
        before = builder.block
        loop, last, done = map(builder.append_basic_block, ("values", "last", "done"))
        starts = [builder.load(pointer(sums, *target), align=4) for target in targets]
        builder.cbranch(builder.icmp_unsigned("<", begin, end), loop, done)

        builder.position_at_end(loop)
        j, totals = builder.phi(begin.type), [builder.phi(start.type) for start in starts]
        value = builder.load(builder.gep(values, [j]))
        place = builder.sext(builder.load(builder.gep(places, [j])), shifts[0].type)
        sources = [(builder.add(place, shift), *vector) for shift in shifts for vector in group]
        results = []
        for total, source in zip(totals, sources):
            run = builder.load(pointer(runs, *source), align=4)
            product = builder.fmul(_repeated(builder, value, run.type.count), run)
            results.append(builder.fadd(total, product))
        following = builder.add(j, j.type(1))
        for phi, start, result in zip([j, *totals], [begin, *starts], [following, *results]):
            phi.add_incoming(start, before)
            phi.add_incoming(result, loop)
        builder.cbranch(builder.icmp_unsigned("<", following, end), loop, last)

        builder.position_at_end(last)
        for result, target in zip(results, targets):
            builder.store(result, pointer(sums, *target), align=4)
        builder.branch(done)
        builder.position_at_end(done)
    return context.get_dummy_value()


# ------------------------------------------------------------------ lists


def append_loop(count: int, step: int) -> Loop:
    """Return a function that appends `count` channels of a pixel to a list, as a rule says.

    append(source, pixel, channel, rule, list, place) looks at the values from
    source[pixel + channel] on, and returns the end of the list. place: that of the pixel's first
    channel; those of its channels are `step` apart. AVX-512 has an instruction for this, which LLVM
    does not find.
    """

    def append(
        typing: Any,
        source: types.Array,
        pixel: types.Integer,
        channel: types.Integer,
        rule: types.BaseTuple,
        appended: types.BaseTuple,
        place: types.Integer,
    ) -> tuple[Any, Callable[..., Any]]:
        signature = appended.types[-1](source, pixel, channel, rule, appended, place)
        return signature, lambda *generation: _append(count, step, *generation)

    return typed_intrinsic(unique(append))


def _append(
    count: int,
    step: int,
    context: Any,
    builder: ir.IRBuilder,
    signature: Any,
    arguments: Any,
) -> Any:
    """Write LLVM's instructions of `append`, with a vector of a power of two."""
    data = _flat(context, builder, signature.args, arguments)
    source, pixel, channel, skipped, *choice, values, places, end, place = data
    if not count:
        return end
    at, number = builder.add(pixel, channel), ir.IntType(32)
    place = builder.trunc(builder.add(place, builder.mul(channel, channel.type(step))), number)
    if choice:
        winners, won, winner = choice
        won, winner = builder.add(won, channel), builder.trunc(winner, ir.IntType(8))
    if count < 4 or not {"+avx512f", "+avx512vl"} <= processor()[1]:
        for lane in range(count):
            found = builder.load(builder.gep(source, [builder.add(at, at.type(lane))]))
            is_listed = builder.fcmp_unordered("!=", found, skipped)
            if choice:
                won_by = builder.load(builder.gep(winners, [builder.add(won, won.type(lane))]))
                is_listed = builder.and_(is_listed, builder.icmp_unsigned("==", won_by, winner))
            builder.store(found, builder.gep(values, [end]))
            builder.store(builder.add(place, number(lane * step)), builder.gep(places, [end]))
            end = builder.add(end, builder.zext(is_listed, end.type))
        return end

    width = max(4, 1 << (count - 1).bit_length())
    found = builder.load(_vector_at(builder, source, at, width), align=4)
    is_listed = builder.fcmp_unordered("!=", found, _repeated(builder, skipped, width))
    if choice:
        won_by = builder.load(_vector_at(builder, winners, won, width), align=1)
        is_winner = builder.icmp_unsigned("==", won_by, _repeated(builder, winner, width))
        is_listed = builder.and_(is_listed, is_winner)
    is_lane = ir.Constant(is_listed.type, [lane < count for lane in range(width)])
    is_listed = builder.and_(is_listed, is_lane)
    steps = ir.Constant(ir.VectorType(number, width), [lane * step for lane in range(width)])
    found_at = builder.add(_repeated(builder, place, width), steps)
    for vector, target, kind in ((found, values, "f32"), (found_at, places, "i32")):
        name = f"llvm.x86.avx512.mask.compress.v{width}{kind}"
        types_of = ir.FunctionType(vector.type, [vector.type, vector.type, is_listed.type])
        compress = cgutils.get_or_insert_function(builder.module, types_of, name)
        packed = builder.call(compress, [vector, ir.Constant(vector.type, None), is_listed])
        builder.store(packed, _vector_at(builder, target, end, width), align=4)
    listed = builder.ctpop(builder.bitcast(is_listed, ir.IntType(width)))
    return builder.add(end, builder.zext(listed, end.type))


# ------------------------------------------------------------------ LLVM's vectors


def _flat(
    context: Any, builder: ir.IRBuilder, kinds: Sequence[types.Type], arguments: Sequence[Any]
) -> list[Any]:
    """Return arguments, those in tuples one by one; of arrays, pointers to their values."""
    flat = []
    for kind, argument in zip(kinds, arguments):
        if isinstance(kind, types.BaseTuple):
            flat += _flat(context, builder, kind.types, cgutils.unpack_tuple(builder, argument))
        elif isinstance(kind, types.Array):
            flat.append(context.make_array(kind)(context, builder, argument).data)
        else:
            flat.append(argument)
    return flat


def _vector_at(builder: ir.IRBuilder, array: Any, place: Any, width: int) -> Any:
    """Return a pointer to the vector that begins at a place of an array."""
    first = builder.gep(array, [place])
    return builder.bitcast(first, ir.VectorType(first.type.pointee, width).as_pointer())


def _repeated(builder: ir.IRBuilder, value: Any, width: int) -> Any:
    """Return a vector of one value."""
    number = ir.IntType(32)
    undefined = ir.Constant(ir.VectorType(value.type, width), ir.Undefined)
    first = builder.insert_element(undefined, value, number(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(number, width), None))
