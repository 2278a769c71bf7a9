// Rotations of pairs, for ROPE and for those who rotate what they take from a product ahead of it.
#pragma once
#include "arithmetic.cuh"
#include "matrix.cuh"
#include "views.cuh"

DEV void rotate(f32& a, f32& b, f32 cos, f32 sin) {
    const f32 first = a * cos - b * sin;
    b = b * cos + a * sin;
    a = first;
}
// Two words of neighbours, each the partner of the other one's.
template <class T> DEV void rotate_words(u32& low, u32& high, f32 cos0, f32 cos1, f32 sin0, f32 sin1) {
    float2 a = T::unpack(low), b = T::unpack(high);
    rotate(a.x, b.x, cos0, sin0);
    rotate(a.y, b.y, cos1, sin1);
    low = T::pack(a.x, a.y);
    high = T::pack(b.x, b.y);
}

// A lane's part of the tables, one line of f32 each: of chunks t + 4 i of a line, and those half a line behind.
template <class T, u32 WIDTH> struct HeldTables {
    static constexpr u32 PAIRS = WIDTH / 64;  // of chunks
    float4 cos[PAIRS][2], sin[PAIRS][2];

    // Without tables, what lies at `instead`.
    DEV HeldTables(const Tensor* tables, u32 t, bool exist, const char* instead) {
        load(cos, tables[0], t, exist, instead);
        load(sin, tables[1], t, exist, instead);
    }
    // Chunks t + 4 i of a line.
    DEV void rotate_line(uint4 (&line)[2 * PAIRS]) const {
#pragma unroll
        for (u32 i = 0; i < PAIRS; ++i) {
            uint4 &a = line[i], &b = line[i + PAIRS];
            rotate_words<T>(a.x, b.x, cos[i][0].x, cos[i][0].y, sin[i][0].x, sin[i][0].y);
            rotate_words<T>(a.y, b.y, cos[i][0].z, cos[i][0].w, sin[i][0].z, sin[i][0].w);
            rotate_words<T>(a.z, b.z, cos[i][1].x, cos[i][1].y, sin[i][1].x, sin[i][1].y);
            rotate_words<T>(a.w, b.w, cos[i][1].z, cos[i][1].w, sin[i][1].z, sin[i][1].w);
        }
    }

  private:
    static DEV void load(float4 (&to)[PAIRS][2], const Tensor& table, u32 t, bool exists, const char* instead) {
#pragma unroll
        for (u32 i = 0; i < PAIRS; ++i)
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                const char* p = in_global(table.data) + ((t + 4 * i) * 8 + half * 4) * sizeof(f32);
                if (!exists || !range_in_bounds(table, p, sizeof(float4))) p = instead;
                to[i][half] = *reinterpret_cast<const float4*>(p);
            }
    }
};
