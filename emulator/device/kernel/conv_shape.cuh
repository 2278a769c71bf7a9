// The geometry of a convolution.
#pragma once
#include "epilogue.cuh"
#include "views.cuh"

// The geometry of one CONV; a one-dimensional one has a first spatial axis of size 1.
struct ConvShape {
    u32 spatial;  // axes
    u32 groups, channels, outputs;  // channels and outputs: of one group
    i32 kernel[2], size[2], positions[2], stride[2], dilation[2], pad[2];
    i32 pitch[2];  // distance of neighbours of x: gap + 1
    u32 rows;   // output positions, over all samples
    u32 depth;  // terms of one output

    DEV explicit ConvShape(const ConvArgs& args) {
        const Tensor& out = args.out();
        const Tensor& x = args.x();
        const Tensor& w = args.w();
        spatial = x.rank - 2;
        groups = args.groups();
        channels = w.dims[w.rank - 1];
        outputs = w.dims[0] / groups;
        rows = out.dims[0];
        depth = channels;
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const bool there = i + spatial >= 2;
            const u32 axis = there ? i + spatial - 1 : 0;
            kernel[i] = there ? w.dims[axis] : 1;
            size[i] = there ? x.dims[axis] : 1;
            positions[i] = there ? out.dims[axis] : 1;
            stride[i] = args.strides(i);
            dilation[i] = args.dilations(i);
            pad[i] = args.pads(i);
            pitch[i] = args.gaps(i) + 1;
            rows *= positions[i];
            depth *= kernel[i];
        }
    }
    DEV bool has_gaps() const { return pitch[0] > 1 || pitch[1] > 1; }
    // The element of x that lies at `at` along an axis that may have gaps; negative in a gap and in front of x.
    DEV i32 behind_gaps(u32 axis, i32 at) const {
        if (pitch[axis] == 1) return at;
        const i32 place = at / pitch[axis];
        return at >= 0 && place * pitch[axis] == at ? place : -1;
    }
    // Groups that would fill only a sliver of a tensor-core tile.
    DEV bool direct() const { return groups > 1 && (outputs < 16 || depth < 16); }
};
