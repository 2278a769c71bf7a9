// Draws the plots of a profile from the JSON in #data. All names there are text: they go to a canvas or to textContent.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const said = document.getElementById("said");
  const plots = [];

  // -- how things look

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const narrow = () => window.innerWidth < 640;
  const colours = () => Array.from({ length: 9 }, (_, i) => css(`--c${i}`));
  const kinds = new Map(data.kinds.map((name, i) => [name, Math.min(i, 8)])); // the last colour is for all others
  const kindOf = (name) => kinds.get(name) ?? 8;

  const three = (v) => String(Number(v.toPrecision(3)));
  function amount(v, unit) {
    for (const prefix of ["", "k", "M", "G", "T"]) {
      if (Math.abs(v) < 999.5) return `${three(v)} ${prefix}${unit}`;
      v /= 1000;
    }
    return `${three(v)} P${unit}`;
  }
  function duration(us) {
    if (us < 0.9995) return `${three(us * 1000)} ns`;
    if (us < 999.5) return `${three(us)} us`;
    return us < 999500 ? `${three(us / 1000)} ms` : `${three(us / 1e6)} s`;
  }
  const percent = (v) => `${(v * 100).toFixed(1)}%`;

  function tip(text) {
    const found = document.createElement("div");
    found.className = "tip";
    found.textContent = text;
    return found;
  }

  function base() {
    const ink = css("--ink"), faint = css("--faint"), line = css("--line");
    const axis = {
      nameLocation: "middle", nameGap: 30, nameTextStyle: { color: faint },
      axisLine: { lineStyle: { color: line } }, axisLabel: { color: faint, hideOverlap: true },
      splitLine: { lineStyle: { color: line, opacity: 0.5 } }, minorSplitLine: { show: false },
    };
    return {
      axis, ink, faint, line,
      option: {
        animation: false, textStyle: { color: ink, fontFamily: "system-ui, sans-serif" },
        tooltip: { trigger: "item", confine: true, backgroundColor: css("--panel"), borderColor: line,
          textStyle: { color: ink } },
      },
    };
  }

  // `make` returns the chart's options; it is asked again when colours or sizes change.
  function plot(id, empty, make) {
    const box = document.getElementById(id);
    if (empty) {
      box.classList.add("empty");
      box.removeAttribute("tabindex");
      box.textContent = empty;
      return null;
    }
    const chart = echarts.init(box, null, { renderer: "canvas" });
    const draw = () => chart.setOption(make(chart), { notMerge: true });
    plots.push({ chart, draw });
    draw();
    return { box, chart };
  }

  // Arrow keys go through `count` items; `show` shows one and says what it is; Enter calls `open`.
  function steps(found, count, show, open) {
    if (!found) return;
    let at = -1;
    found.box.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (by) {
        at = (at + by + count) % count;
        said.textContent = show(at);
      } else if (event.key === "Enter" && at >= 0) open(at);
      else if (event.key === "Escape") found.chart.dispatchAction({ type: "hideTip" });
      else return;
      event.preventDefault();
    });
  }

  function go(index) {
    const row = document.getElementById(`i${index}`);
    if (!row) return;
    location.hash = `i${index}`;
    row.querySelector("a").focus();
  }

  function told(p) {
    const lines = [`${p.index} ${p.name}`, `one call ${p.active === null ? "?" : duration(p.active)}, ${p.calls} calls`];
    if (p.share !== null) lines.push(`${percent(p.share)} of the run`);
    if (p.flops_rate) lines.push(amount(p.flops_rate, "flop/s"));
    if (p.bytes_rate) lines.push(amount(p.bytes_rate, "B/s"));
    if (p.intensity !== null) lines.push(`${amount(p.intensity, "flop")} for each byte`);
    if (p.of_roof !== null) lines.push(`${percent(p.of_roof)} of the roof`);
    if (p.utilisation !== null) lines.push(`multiprocessors work ${percent(p.utilisation)} of it`);
    if (p.native) {
      lines.push(`${p.native.kernel}: ${duration(p.native.cold)} cold` +
        (p.native.warm === null ? "" : `, ${duration(p.native.warm)} warm`) +
        (p.native.agrees ? "" : " - DOES NOT AGREE"));
    }
    return lines.join("\n");
  }

  // -- roofline

  const placed = data.points.filter((p) => p.bytes && p.bytes_rate);
  const intensities = placed.filter((p) => p.flops).map((p) => p.flops / p.bytes);
  const flopRoofs = Object.entries(data.roofs.flops).sort(([, a], [, b]) => b - a);
  const left = 10 ** Math.floor(Math.log10(Math.min(0.1, ...intensities)));
  const ridge = Math.max(1, ...flopRoofs.map(([, v]) => v / data.roofs.bytes));
  const right = 10 ** Math.ceil(Math.log10(Math.max(4 * ridge, ...intensities)));
  const place = (p) => (p.flops ? [p.flops / p.bytes, p.flops_rate] : [left, left * p.bytes_rate]);

  // The name of roof `i`: the first of several that nearly coincide names them all; below the line if one is close above.
  function roofName(i) {
    const near = (a, b, factor) => flopRoofs[a][1] < factor * flopRoofs[b][1];
    if (i && near(i - 1, i, 1.3)) return ["", -10];
    let last = i;
    while (last + 1 < flopRoofs.length && near(last, last + 1, 1.3)) last++;
    const names = flopRoofs.slice(i, last + 1).map(([name, v]) => `${name} ${amount(v, "flop/s")}`);
    return [names.join(", "), i && near(i - 1, i, 3) ? 10 : -10];
  }

  const roofline = plot("roofline-chart", placed.length ? "" : "Nothing was executed.", () => {
    const { axis, option, ink, faint } = base();
    const palette = colours();
    const roof = ([name, y], points) => ({
      type: "line", data: points, symbol: "none", silent: true, lineStyle: { color: faint, width: 2 },
      endLabel: { show: true, formatter: () => name, color: ink, align: "right", offset: [-6, y], distance: 0,
        fontSize: 11 },
    });
    const top = Math.max(10 * left * data.roofs.bytes, ...flopRoofs.map(([, v]) => v));
    const slope = data.roofs.bytes ? [[left, left * data.roofs.bytes], [top / data.roofs.bytes, top]] : [];
    const lines = flopRoofs.map(([, v], i) => roof(roofName(i), [[v / data.roofs.bytes, v], [right, v]]));
    const copying = roof(["", 0], slope);
    if (slope.length) copying.markPoint = { silent: true, symbolSize: 0, data: [{ coord: slope[0] }],
      label: { show: true, formatter: () => `copy ${amount(data.roofs.bytes, "B/s")}`, color: ink, fontSize: 11,
        position: "right", offset: [14, 6], align: "left" } };
    const logarithm = { ...axis, type: "log", logBase: 10 };
    return {
      ...option,
      grid: { left: 70, right: 16, top: 24, bottom: 48 },
      xAxis: { ...logarithm, name: "operations per byte", min: left, max: right,
        axisLabel: { ...axis.axisLabel, formatter: three } },
      yAxis: { ...logarithm, name: "operations per second", nameGap: 52,
        axisLabel: { ...axis.axisLabel, formatter: (v) => amount(v, "") } },
      series: [copying, ...lines, {
        type: "scatter", id: "points",
        data: placed.map((p) => ({ value: place(p), symbol: p.flops ? "circle" : "diamond",
          symbolSize: 8 + 22 * Math.sqrt(p.share ?? 0), itemStyle: { color: palette[kindOf(p.name)] } })),
        itemStyle: { opacity: 0.8, borderColor: css("--paper"), borderWidth: 1 },
        emphasis: { itemStyle: { opacity: 1, borderColor: ink, borderWidth: 2 } },
        tooltip: { formatter: (at) => tip(told(placed[at.dataIndex])) },
      }],
    };
  });
  if (roofline) roofline.chart.on("click", { seriesType: "scatter" }, (at) => go(placed[at.dataIndex].index));
  steps(roofline, placed.length, (i) => {
    roofline.chart.dispatchAction({ type: "showTip", seriesId: "points", seriesIndex: 1 + flopRoofs.length, dataIndex: i });
    return told(placed[i]);
  }, (i) => go(placed[i].index));

  // -- beside native kernels

  const beside = data.points.filter((p) => p.native && p.active !== null && p.native.ratio !== null);
  const longest = [...beside].sort((a, b) => (b.share ?? 0) - (a.share ?? 0)).slice(0, data.bars);
  const bars = beside.filter((p) => longest.includes(p));
  const natives = plot("natives-chart", bars.length ? "" : "There is nothing to compare.", (chart) => {
    const { axis, option, faint } = base();
    const height = 90 + 36 * bars.length;
    chart.getDom().style.height = `${height}px`;
    chart.resize();
    const bar = (name, colour, value) => ({ type: "bar", name, data: bars.map(value), itemStyle: { color: colour },
      barGap: "0%", barCategoryGap: "30%", tooltip: { formatter: (at) => tip(told(bars[at.dataIndex])) } });
    const short = (name) => (narrow() && name.length > 14 ? `${name.slice(0, 13)}…` : name.slice(0, 40));
    return {
      ...option,
      grid: { left: 8, right: 46, top: 34, bottom: 40, containLabel: true },
      legend: { top: 4, textStyle: { color: css("--ink") } },
      xAxis: { ...axis, type: "value", name: "us", nameGap: 26, position: "bottom" },
      yAxis: { ...axis, type: "category", inverse: true, data: bars.map((p) => short(`${p.index} ${p.name}`)),
        axisLabel: { ...axis.axisLabel, interval: 0, fontSize: 11 }, splitLine: { show: false } },
      series: [
        bar("dla", css("--c0"), (p) => p.active),
        { ...bar("native", css("--c1"), (p) => p.native.cold),
          label: { show: true, position: "right", color: faint, fontSize: 11, textBorderWidth: 0,
            formatter: (at) => {
              const p = bars[at.dataIndex];
              return `${p.native.ratio.toFixed(2)}${p.native.agrees ? "" : " wrong"}`;
            } } },
      ],
    };
  });
  if (natives) natives.chart.on("click", (at) => go(bars[at.dataIndex].index));
  steps(natives, bars.length, (i) => {
    natives.chart.dispatchAction({ type: "showTip", seriesIndex: 0, dataIndex: i });
    return told(bars[i]);
  }, (i) => go(bars[i].index));

  // -- timeline: one item, which paints all spans that are in sight onto a canvas of its own

  const line = data.timeline;
  const bytes = Uint8Array.from(atob(line.columns), (c) => c.charCodeAt(0));
  const column = (i) => new Uint32Array(bytes.buffer, i * 4 * line.count, line.count);
  const [block, instruction, began, wait, length] = [0, 1, 2, 3, 4].map(column);
  const starts = []; // of each block's spans, and the end of the last one's
  for (let i = 0; i < line.count; i++) while (starts.length <= block[i]) starts.push(i);
  while (starts.length <= line.multiprocessors.length) starts.push(line.count);
  const nameOf = (i) => line.names[instruction[i]] ?? "";
  const micro = (t) => (t * line.unit) / 1000;

  // The first span of block `b` that ends after `t`.
  function firstAfter(b, t) {
    let low = starts[b], high = starts[b + 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (began[middle] + length[middle] > t) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  function paint(x, y, width, height, from, to) {
    const canvas = document.createElement("canvas");
    const fine = window.devicePixelRatio || 1;
    canvas.width = Math.max(1, Math.round(width * fine));
    canvas.height = Math.max(1, Math.round(height * fine));
    const pen = canvas.getContext("2d");
    const palette = colours(), grey = css("--wait"), count = line.multiprocessors.length;
    const across = canvas.width / (to - from), down = canvas.height / count, gap = down > 4 * fine ? fine : 0;
    for (let b = 0; b < count; b++) {
      const top = b * down;
      for (let i = firstAfter(b, from); i < starts[b + 1] && began[i] < to; i++) {
        const begin = (began[i] - from) * across, ready = begin + wait[i] * across;
        if (wait[i]) {
          pen.fillStyle = grey;
          pen.fillRect(begin, top, ready - begin, down - gap);
        }
        pen.fillStyle = palette[kindOf(nameOf(i))];
        pen.fillRect(ready, top, Math.max((length[i] - wait[i]) * across - (length[i] * across > 6 * fine ? fine : 0), 0.4),
          down - gap);
      }
    }
    pen.strokeStyle = css("--path");
    pen.lineWidth = Math.max(fine, Math.min(down / 3, 2 * fine));
    pen.beginPath();
    for (const [begin, end, b] of line.critical) {
      if (end < from || begin > to) continue;
      pen.moveTo((begin - from) * across, (b + 0.5) * down);
      pen.lineTo((end - from) * across, (b + 0.5) * down);
    }
    pen.stroke();
    return { type: "image", silent: true, style: { image: canvas, x, y, width, height } };
  }

  const timeline = plot("timeline-chart", line.count ? "" : "The trace is empty.", (chart) => {
    const { axis, option } = base();
    const count = line.multiprocessors.length;
    chart.getDom().style.height = `${Math.max(240, Math.min(620, 120 + count * (narrow() ? 3 : 4)))}px`;
    chart.resize();
    return {
      ...option,
      grid: { left: narrow() ? 44 : 60, right: 12, top: 12, bottom: 84 },
      xAxis: { ...axis, type: "value", min: 0, max: line.end, name: "time", nameGap: 24,
        axisLabel: { ...axis.axisLabel, formatter: (t) => duration(micro(t)) }, splitLine: { show: false } },
      yAxis: { ...axis, type: "value", min: 0, max: count, inverse: true, name: "multiprocessor", nameGap: narrow() ? 28 : 40,
        splitLine: { show: false },
        axisLabel: { ...axis.axisLabel, formatter: (b) => String(line.multiprocessors[b] ?? "") },
        minInterval: 1 },
      tooltip: { ...option.tooltip, trigger: "none" },
      dataZoom: [
        { type: "inside", filterMode: "none", zoomOnMouseWheel: "ctrl", moveOnMouseMove: true },
        { type: "slider", filterMode: "none", bottom: 10, height: 24, showDetail: false, brushSelect: false,
          borderColor: css("--line"), textStyle: { color: css("--faint") } },
      ],
      series: [{
        type: "custom", clip: true, data: [[0, 0]],
        renderItem: (params, api) => {
          const { x, y, width, height } = params.coordSys;
          const zero = api.coord([0, 0])[0], each = (api.coord([line.end, 0])[0] - zero) / line.end;
          return paint(x, y, width, height, (x - zero) / each, (x + width - zero) / each);
        },
      }],
    };
  });

  if (timeline) {
    const legend = document.getElementById("timeline-legend");
    const entry = (text, colour) => {
      const one = document.createElement("span"), swatch = document.createElement("i");
      swatch.style.background = `var(${colour})`;
      one.append(swatch, text);
      legend.append(one);
    };
    data.kinds.slice(0, 8).forEach((name, i) => entry(name, `--c${i}`));
    if (data.kinds.length > 8) entry("others", "--c8");
    entry("waiting", "--wait");
    entry("critical path", "--path");

    const range = () => {
      const zoom = timeline.chart.getOption().dataZoom[0];
      return [zoom.start, zoom.end];
    };
    const zoomTo = (start, end) => {
      const size = Math.min(100, Math.max(0.005, end - start));
      start = Math.min(Math.max(0, start), 100 - size);
      timeline.chart.dispatchAction({ type: "dataZoom", start, end: start + size });
      const part = (share) => duration(micro((line.end * share) / 100));
      said.textContent = `${part(start)} to ${part(start + size)}`;
    };
    const zoom = (what) => {
      const [start, end] = range(), size = end - start;
      if (what === "in") zoomTo(start + size / 4, end - size / 4);
      else if (what === "out") zoomTo(start - size / 2, end + size / 2);
      else if (what === "left") zoomTo(start - size / 4, end - size / 4);
      else if (what === "right") zoomTo(start + size / 4, end + size / 4);
      else zoomTo(0, 100);
    };
    for (const button of document.querySelectorAll("[data-zoom]"))
      button.addEventListener("click", () => zoom(button.dataset.zoom));
    const keys = { ArrowLeft: "left", ArrowRight: "right", "+": "in", "=": "in", "-": "out", "0": "all" };
    timeline.box.addEventListener("keydown", (event) => {
      if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
      zoom(keys[event.key]);
      event.preventDefault();
    });

    const under = (event) => {
      const [t, row] = timeline.chart.convertFromPixel({ gridIndex: 0 }, [event.offsetX, event.offsetY]);
      const b = Math.floor(row);
      if (!(b >= 0 && b < line.multiprocessors.length && timeline.chart.containPixel("grid", [event.offsetX, event.offsetY])))
        return -1;
      const i = firstAfter(b, t);
      return i < starts[b + 1] && began[i] <= t ? i : -1;
    };
    const label = tip("");
    Object.assign(label.style, { position: "absolute", pointerEvents: "none", display: "none", zIndex: 1, padding: "6px 9px",
      background: "var(--panel)", border: "1px solid var(--line)", borderRadius: "4px" });
    timeline.box.append(label);
    timeline.chart.getZr().on("mousemove", (event) => {
      const i = under(event);
      label.style.display = i < 0 ? "none" : "block";
      if (i < 0) return;
      label.textContent = `${instruction[i]} ${nameOf(i)}\nmultiprocessor ${line.multiprocessors[block[i]]}, at ` +
        `${duration(micro(began[i]))}\n${duration(micro(length[i]))}, of which ${duration(micro(wait[i]))} waiting`;
      const room = timeline.box.clientWidth - label.offsetWidth - 8;
      label.style.left = `${Math.max(0, Math.min(event.offsetX + 14, room))}px`;
      label.style.top = `${Math.min(event.offsetY + 14, timeline.box.clientHeight - label.offsetHeight - 4)}px`;
    });
    timeline.chart.getZr().on("globalout", () => { label.style.display = "none"; });
    timeline.chart.getZr().on("dblclick", (event) => {
      const i = under(event);
      if (i >= 0) go(instruction[i]);
    });
  }

  // -- memory

  const plan = data.memory;
  const about = ([name, offset, size, first, last]) =>
    `${name || "(no name)"}\n${size.toLocaleString("en")} bytes at ${offset.toLocaleString("en")}\ninstructions ${first} to ${last}`;
  const memory = plot("memory-chart", plan.tensors.length ? "" : "The program uses no scratch memory.", () => {
    const { axis, option } = base();
    const palette = colours(), paper = css("--paper"), ink = css("--ink");
    return {
      ...option,
      grid: { left: 76, right: 16, top: 14, bottom: 48 },
      xAxis: { ...axis, type: "value", min: 0, max: plan.instructions, name: "instruction", minInterval: 1,
        splitLine: { show: false } },
      yAxis: { ...axis, type: "value", min: 0, max: plan.size, name: "address", nameGap: 58,
        axisLabel: { ...axis.axisLabel, showMaxLabel: false, formatter: (v) => amount(v, "B") } },
      series: [{
        type: "custom", encode: { x: [3, 4], y: 1 }, progressive: 0, dimensions: ["name", "offset", "size", "first", "last"],
        data: plan.tensors.map((t, i) => [i, ...t.slice(1)]),
        tooltip: { formatter: (at) => tip(about(plan.tensors[at.dataIndex])) },
        renderItem: (params, api) => {
          const [x, y] = api.coord([api.value(3), api.value(1) + api.value(2)]);
          const [right, bottom] = api.coord([api.value(4) + 1, api.value(1)]);
          const name = plan.tensors[params.dataIndex][0];
          const shape = { x, y, width: Math.max(1, right - x), height: Math.max(1, bottom - y) };
          return { type: "rect", shape,
            style: { fill: palette[params.dataIndex % 8], opacity: 0.85, stroke: paper, lineWidth: 1 },
            emphasis: { style: { opacity: 1, stroke: ink } },
            textContent: shape.width > 40 && shape.height > 14
              ? { style: { text: name, fill: paper, width: shape.width - 8, overflow: "truncate", fontSize: 11 } } : undefined,
            textConfig: { position: "inside" } };
        },
      }],
    };
  });
  steps(memory, plan.tensors.length, (i) => {
    memory.chart.dispatchAction({ type: "showTip", seriesIndex: 0, dataIndex: i });
    return about(plan.tensors[i]);
  }, (i) => go(plan.tensors[i][3]));

  // -- changes around the page

  let asked = 0;
  const again = () => {
    cancelAnimationFrame(asked);
    asked = requestAnimationFrame(() => plots.forEach(({ chart, draw }) => { chart.resize(); draw(); }));
  };
  let width = window.innerWidth; // a phone's bars come and go, which changes the height alone
  window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; again(); } });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  document.documentElement.dataset.drawn = String(Math.round(performance.now())); // milliseconds since the page began
})();
