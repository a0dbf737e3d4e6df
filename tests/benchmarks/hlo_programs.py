"""Programs as XLA prints them, cut to what `benchmarks.hlo` reads."""

# A loop of 5 iterations. Each squares a [2, 3] array (padded to 8 x 128 in the chip's
# main memory) into on-chip memory, writes 12 bytes in place, and all-reduces 24 bytes.
PROGRAM = """
HloModule by_hand

%body (p: (s32[], f32[2,3])) -> (s32[], f32[2,3]) {
  %p = (s32[], f32[2,3]{1,0:T(8,128)}, f32[100,3]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[2,3]{1,0:T(8,128)} get-tuple-element(%p), index=1
  %y = f32[100,3]{1,0} get-tuple-element(%p), index=2
  %square = f32[2,3]{1,0:T(8,128)S(1)} multiply(%x, %x), metadata={op_name="jit(f)/mul"}, backend_config={"window_config":{"estimated_cycles":"618"}}
  %row = f32[1,3]{1,0:S(1)} fusion(%y, %i), kind=kLoop, calls=%read
  %z = f32[100,3]{1,0} fusion(%y, %row, %i), kind=kLoop, calls=%write
  %sum = f32[2,3]{1,0:S(1)} all-reduce(%square), channel_id=1, to_apply=%add
  ROOT %t = (s32[], f32[2,3]{1,0:T(8,128)}, f32[100,3]{1,0}) tuple(%i, %x, %z)
}

%read (a: f32[100,3], b: s32[]) -> f32[1,3] {
  %a = f32[100,3]{1,0} parameter(0)
  %b = s32[] parameter(1)
  ROOT %c = f32[1,3]{1,0} dynamic-slice(%a, %b, %b), dynamic_slice_sizes={1,3}
}

%write (a: f32[100,3], u: f32[1,3], b: s32[]) -> f32[100,3] {
  %a = f32[100,3]{1,0} parameter(0)
  %u = f32[1,3]{1,0:S(1)} parameter(1)
  %b = s32[] parameter(2)
  ROOT %c = f32[100,3]{1,0} dynamic-update-slice(%a, %u, %b, %b)
}

%condition (p: (s32[], f32[2,3])) -> pred[] {
  %p = (s32[], f32[2,3]{1,0}, f32[100,3]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] constant(5)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (x: f32[2,3]) -> f32[2,3] {
  %x = f32[2,3]{1,0:T(8,128)} parameter(0)
  %start = (s32[], f32[2,3]{1,0:T(8,128)}, f32[100,3]{1,0}) tuple(%x)
  %loop = (s32[], f32[2,3]{1,0}, f32[100,3]{1,0}) while(%start), condition=%condition, body=%body
  %there = (f32[2,3]{1,0:T(8,128)}, f32[2,3]{1,0:T(8,128)S(1)}, u32[]) copy-start(%x)
  ROOT %out = f32[2,3]{1,0:T(8,128)S(1)} copy-done(%there)
}
"""  # noqa: E501

# Five turns. Each reads one row of a [100, 3] array and writes one of another by a
# fusion within a fusion, as libtpu compiles a scan over layers.
NESTED = """
HloModule nested

%inner (a: f32[100,3], b: s32[]) -> f32[1,3] {
  %a = f32[100,3]{1,0} parameter(0)
  %b = s32[] parameter(1)
  ROOT %c = f32[1,3]{1,0} dynamic-slice(%a, %b, %b), dynamic_slice_sizes={1,3}
}

%inner_write (a: f32[100,3], u: f32[1,3], b: s32[]) -> f32[100,3] {
  %a = f32[100,3]{1,0} parameter(0)
  %u = f32[1,3]{1,0} parameter(1)
  %b = s32[] parameter(2)
  ROOT %c = f32[100,3]{1,0} dynamic-update-slice(%a, %u, %b, %b)
}

%outer (n: s32[], x: f32[100,3], y: f32[100,3]) -> f32[100,3] {
  %n = s32[] parameter(0)
  %x = f32[100,3]{1,0} parameter(1)
  %y = f32[100,3]{1,0} parameter(2)
  %row = f32[1,3]{1,0} fusion(%x, %n), kind=kLoop, calls=%inner
  ROOT %z = f32[100,3]{1,0} fusion(%y, %row, %n), kind=kLoop, calls=%inner_write
}

%body (p: (s32[], f32[100,3], f32[100,3])) -> (s32[], f32[100,3], f32[100,3]) {
  %p = (s32[], f32[100,3]{1,0}, f32[100,3]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[100,3]{1,0} get-tuple-element(%p), index=1
  %y = f32[100,3]{1,0} get-tuple-element(%p), index=2
  %z = f32[100,3]{1,0} fusion(%i, %x, %y), kind=kOutput, calls=%outer
  ROOT %t = (s32[], f32[100,3]{1,0}, f32[100,3]{1,0}) tuple(%i, %x, %z)
}

%condition (p: (s32[], f32[100,3], f32[100,3])) -> pred[] {
  %p = (s32[], f32[100,3]{1,0}, f32[100,3]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] constant(5)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (s: s32[], x: f32[100,3], y: f32[100,3]) -> (s32[], f32[100,3], f32[100,3]) {
  %s = s32[] parameter(0)
  %x = f32[100,3]{1,0} parameter(1)
  %y = f32[100,3]{1,0} parameter(2)
  %start = (s32[], f32[100,3]{1,0}, f32[100,3]{1,0}) tuple(%s, %x, %y)
  ROOT %l = (s32[], f32[100,3], f32[100,3]) while(%start), condition=%condition, body=%body
}
"""  # noqa: E501

# A GPU reads a row and writes it by fusions that run beside other work. Their results
# list operands, results and a context.
ASYNCHRONOUS = """
HloModule asynchronous

%read (a: f32[100,3], b: s32[]) -> f32[1,3] {
  %a = f32[100,3]{1,0} parameter(0)
  %b = s32[] parameter(1)
  ROOT %c = f32[1,3]{1,0} dynamic-slice(%a, %b, %b), dynamic_slice_sizes={1,3}
}

%write (a: f32[100,3], u: f32[1,3], b: s32[]) -> f32[100,3] {
  %a = f32[100,3]{1,0} parameter(0)
  %u = f32[1,3]{1,0} parameter(1)
  %b = s32[] parameter(2)
  ROOT %c = f32[100,3]{1,0} dynamic-update-slice(%a, %u, %b, %b)
}

ENTRY %main (x: f32[100,3], n: s32[]) -> f32[100,3] {
  %x = f32[100,3]{1,0} parameter(0)
  %n = s32[] parameter(1)
  %r = ((f32[100,3]{1,0}, s32[]), f32[1,3]{1,0}, u32[]) fusion-start(%x, %n), kind=kLoop, calls=%read
  %row = f32[1,3]{1,0} fusion-done(%r)
  %w = ((f32[100,3]{1,0}, f32[1,3]{1,0}, s32[]), f32[100,3]{1,0}, u32[]) fusion-start(%x, %row, %n), kind=kLoop, calls=%write
  ROOT %out = f32[100,3]{1,0} fusion-done(%w)
}
"""  # noqa: E501
