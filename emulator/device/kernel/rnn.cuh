// RNN: one step of a recurrent layer; one thread computes one element of the states, so they may be updated in place.
#pragma once
#include "activations.cuh"
#include "reduction.cuh"
#include "views.cuh"

// Where one element of a state is: its linear index, its row (all axes but the last) and its column.
struct StateElement {
    i64 index, row;
    u32 column, width;
};

// The gates of one element, which lie a state's width apart in one row.
struct GatesOf {
    const Tensor& tensor;
    i64 first;
    i64 step;

    DEV GatesOf(const Tensor& t, const StateElement& s)
        : tensor(t), first(t.offset_over(leading_axes(t, 1), s.row) + s.column * t.strides[t.rank - 1]),
          step(s.width * t.strides[t.rank - 1]) {}
    DEV f32 operator()(u32 k) const { return load_f32(tensor, first + k * step); }
};

struct RnnHandler {
    static constexpr u32 SCRATCH = 0;
    static DEV u32 tiles(const RnnArgs& args) { return elementwise_tiles(args.out().elements()); }

    static DEV_CALL void run(const RnnArgs& args, u32 tile, const Block& block) {
        const Tensor& out = args.out();
        const u32 width = out.dims[out.rank - 1];
        const bool lstm = args.sub() == RNN_LSTM;
        for_each_element(block, tile, out.elements(), [&](i64 i) {
            const i64 row = i / width;
            const StateElement s{i, row, static_cast<u32>(i - row * width), width};
            const f32 v = lstm ? lstm_step(args, s) : gru_step(args, s);
            store_f32(out, out.offset_of(i), v);
        });
    }

  private:
    static DEV f32 sigmoid(f32 x) { return activation_sigmoid(x, 0.0f); }

    // Writes the cell state, and gives the hidden one.
    static DEV f32 lstm_step(const RnnArgs& args, const StateElement& s) {
        const GatesOf gate(args.gates(), s);
        const f32 before = load_f32(args.c(), args.c().offset_of(s.index));
        const f32 c = sigmoid(gate(1)) * before + sigmoid(gate(0)) * tanhf(gate(2));
        const f32 h = sigmoid(gate(3)) * tanhf(c);
        store_f32(args.c_out(), args.c_out().offset_of(s.index), c);
        return h;
    }

    static DEV f32 gru_step(const RnnArgs& args, const StateElement& s) {
        const GatesOf input(args.gates(), s), hidden(args.rec(), s);
        const f32 before = load_f32(args.h(), args.h().offset_of(s.index));
        const f32 r = sigmoid(input(0) + hidden(0)), z = sigmoid(input(1) + hidden(1));
        const f32 n = tanhf(input(2) + r * hidden(2));
        return (1.0f - z) * n + z * before;
    }
};
