// RNN: one step of a recurrent layer; one thread computes one element of the states, so they may be updated in place.
#pragma once
#include "activations.cuh"
#include "reduction.cuh"
#include "views.cuh"

struct RnnHandler {
    static DEV u32 tiles(const RnnArgs& args) { return elementwise_tiles(args.out().elements()); }

    static DEV_CALL void run(const RnnArgs& args, u32 tile, const Block& block) {
        const Tensor& out = args.out();
        const u32 axis = out.rank - 1;
        const i64 width = out.dims[axis];
        const bool lstm = args.sub() == RNN_LSTM;
        for_each_element(block, tile, out.elements(), [&](i64 i) {
            const i64 row = i / width;
            const u32 column = static_cast<u32>(i - row * width);
            const f32 v = lstm ? lstm_step(args, i, row, column) : gru_step(args, i, row, column);
            store_f32(out, out.offset_of(i), v);
        });
    }

  private:
    // Gate `k` of the state's element in `row` and `column`.
    static DEV f32 gate(const Tensor& gates, i64 row, u32 column, u32 k, u32 width) {
        const u32 axis = gates.rank - 1;
        return load_f32(gates, gates.offset_over(leading_axes(gates, 1), row) + (k * width + column) * gates.strides[axis]);
    }
    static DEV f32 sigmoid(f32 x) { return activation_sigmoid(x, 0.0f); }

    // Writes the cell state, and gives the hidden one.
    static DEV f32 lstm_step(const RnnArgs& args, i64 at, i64 row, u32 column) {
        const u32 width = args.out().dims[args.out().rank - 1];
        const auto input = [&](u32 k) { return gate(args.gates(), row, column, k, width); };
        const f32 before = load_f32(args.c(), args.c().offset_of(at));
        const f32 c = sigmoid(input(1)) * before + sigmoid(input(0)) * tanhf(input(2));
        const f32 h = sigmoid(input(3)) * tanhf(c);
        store_f32(args.c_out(), args.c_out().offset_of(at), c);
        return h;
    }

    static DEV f32 gru_step(const RnnArgs& args, i64 at, i64 row, u32 column) {
        const u32 width = args.out().dims[args.out().rank - 1];
        const auto input = [&](u32 k) { return gate(args.gates(), row, column, k, width); };
        const auto hidden = [&](u32 k) { return gate(args.rec(), row, column, k, width); };
        const f32 before = load_f32(args.h(), args.h().offset_of(at));
        const f32 r = sigmoid(input(0) + hidden(0)), z = sigmoid(input(1) + hidden(1));
        const f32 n = tanhf(input(2) + r * hidden(2));
        return (1.0f - z) * n + z * before;
    }
};
