// PROBE: statistics of a tensor, in f64, by one block.
#pragma once
#include "reduction.cuh"
#include "views.cuh"

struct ProbeStatistics {
    u64 nans;
    u64 infinities;
    f64 minimum;
    f64 maximum;
    f64 sum;

    static DEV ProbeStatistics of(const ProbeStatistics& a, const ProbeStatistics& b) {
        return {a.nans + b.nans, a.infinities + b.infinities, fmin(a.minimum, b.minimum), fmax(a.maximum, b.maximum),
                a.sum + b.sum};
    }
};

struct ProbeHandler {
    static constexpr u32 SCRATCH = STAGING_BYTES;
    static DEV u32 tiles(const ProbeArgs&) { return 1; }

    static DEV_CALL void run(const ProbeArgs& args, u32, const Block& block) {
        const Tensor& x = args.x();
        const i64 count = x.elements();
        const bool floats = is_float(x.dtype);
        const f64 endless = infinity();
        ProbeStatistics mine{0, 0, endless, -endless, 0.0};
#pragma unroll 1
        for (i64 i = block.thread(); i < count; i += WORKER_THREADS) {
            const i64 at = x.offset_of(i);
            const f64 v = floats ? static_cast<f64>(load_f32(x, at)) : static_cast<f64>(load_i64(x, at));
            mine.nans += isnan(v);
            mine.infinities += isinf(v);
            if (isfinite(v)) mine = ProbeStatistics::of(mine, {0, 0, v, v, v});
        }
        const Teams everyone(block, WORKER_THREADS, true);
        const ProbeStatistics all = everyone.combine(block, mine, ProbeStatistics::of);
        if (block.thread() != 0) return;
        const u64 finite = static_cast<u64>(count) - all.nans - all.infinities;
        const f64 none = __longlong_as_double(0x7ff8000000000000ll);
        ProbeRecord& record = block.launch()->probes[args.tag()];
        record.count = static_cast<u64>(count);
        record.nans = all.nans;
        record.infinities = all.infinities;
        record.minimum = finite ? all.minimum : none;
        record.maximum = finite ? all.maximum : none;
        record.mean = finite ? all.sum / static_cast<f64>(finite) : none;
        record.order = args.work.order;
    }
};
