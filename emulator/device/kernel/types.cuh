// Names of the scalar types, and how functions are declared.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i8 = signed char;
using i32 = int;
using i64 = long long;
using f32 = float;
using f64 = double;

#define DEV __device__ __forceinline__
#define DEV_CALL __device__ __noinline__
