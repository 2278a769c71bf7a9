// How the warps that share a row of NORM put its statistics together.
#pragma once
#include "rows.cuh"

// A row's statistics, for a warp that has subtracted its own mean already: fma(x, scale, shift) is normal.
struct NormScale {
    f32 scale, shift;
};
// Of a row whose warps each have their `own` mean, and in each thread a sum of squares of deviations from it. `weight`: the
// warp's share of the row; `share`: that of one element; the others: see fold_team.
DEV_CALL NormScale finish_norm(f32 own, f32 squares, f32 weight, f32 share, f32 eps, u32 thread, u32 team, u32 place) {
    const u32 warp = thread / WARP, lane = thread % WARP;
    float4* const shared = exchange_place<float4>(place);
    f32 centre = own, power = fold_warp<Sum>(squares) * share;
    if (team) {
        if (lane == 0) shared[warp] = make_float4(own, weight, power, 0.0f);
        named_barrier(FIRST_FREE_BARRIER + (warp >> team), WARP << team);
        const u32 first = warp >> team << team;
        const auto apart = [&](const float4& v) { return fmaf(v.y * (v.x - centre), v.x - centre, v.z); };
        if (team == 2) {
            const float4 a = shared[first], b = shared[first + 1], c = shared[first + 2], d = shared[first + 3];
            centre = fmaf(a.x, a.y, b.x * b.y) + fmaf(c.x, c.y, d.x * d.y);
            power = (apart(a) + apart(b)) + (apart(c) + apart(d));
        } else {
            // Several lanes have one warp's; a sum counts it once.
            const float4 v = shared[first + (lane & (1 << team) - 1)];
            const bool counts = lane % WORKER_WARPS >> team == 0;
            centre = fold_warps<Sum>(counts ? v.x * v.y : 0.0f);
            power = fold_warps<Sum>(counts ? apart(v) : 0.0f);
        }
    }
    const f32 scale = rsqrtf(power + eps);
    return {scale, (own - centre) * scale};
}
