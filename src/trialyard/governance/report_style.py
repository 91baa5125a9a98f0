"""The style sheet of a report: light and dark, from a phone's width to a wide screen."""

COLOURS = """
:root{--page:#f5f6f8;--card:#fff;--ink:#1a1f27;--muted:#5d6877;--line:#e2e6eb;--soft:#f1f3f6;
--c1:#2463d6;--c2:#d4540b;--c3:#0b8a6a;--c4:#8a5cd1;--good:#0b7a55;--bad:#bf2f45;--warn:#9a6200;
--good-soft:#e5f5ee;--bad-soft:#fbeaed;--warn-soft:#fdf3e0;--band0:#2463d60d;--band1:#d4540b0f}
@media(prefers-color-scheme:dark){:root{--page:#0e1116;--card:#161b22;--ink:#e4e8ee;
--muted:#97a2b1;--line:#2a323d;--soft:#1d232c;--c1:#6aa5ff;--c2:#ff9a57;--c3:#46c9a0;--c4:#b795f5;
--good:#4ccf9f;--bad:#ff7f90;--warn:#f0b95a;--good-soft:#12302a;--bad-soft:#381a22;
--warn-soft:#33270f;--band0:#6aa5ff12;--band1:#ff9a5714}}
"""

CHART = """
.chart text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;
fill:var(--muted)}
.chart .legend{fill:var(--ink)}.chart .label,.chart .band-name{font-size:11.5px}
.chart .grid{stroke:var(--line);stroke-width:1}.chart .axis{stroke:var(--muted);stroke-width:1}
.chart .line{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
.chart .faint{opacity:.28;stroke-width:1!important}
.chart .dashed{stroke-dasharray:5 5;opacity:.6}.chart .bar{fill:none;stroke-width:1.6}
.chart .mark{stroke:var(--card);stroke-width:1.5}.chart .ground{fill:var(--card)}
.chart .band0{fill:var(--band0)}.chart .band1{fill:var(--band1)}
"""

PAGE = """
*{box-sizing:border-box}html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);line-height:1.5;
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1240px;margin:0 auto;padding:28px 24px 64px}
h1{font-size:28px;line-height:1.2;margin:0;letter-spacing:-.015em;overflow-wrap:anywhere}
h2{font-size:18px;margin:40px 0 12px;letter-spacing:-.005em}
h3{font-size:14px;margin:0 0 8px;font-weight:600}p{margin:0 0 10px}
.muted,.sub{color:var(--muted)}.sub{margin:6px 0 22px}
.card{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:18px 20px;
min-width:0}
.grid{display:grid;gap:16px}.gains{grid-template-columns:1fr 1fr;margin-bottom:16px}
.gains .tile b{font-size:36px;margin:2px 0 4px}.gains .tile .was{font-size:22px}
.tiles{grid-template-columns:repeat(auto-fit,minmax(170px,1fr))}
.charts{grid-template-columns:repeat(auto-fill,minmax(300px,1fr))}
.pair{grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr))}
.tile b{display:block;font-size:26px;line-height:1.2;font-weight:650;letter-spacing:-.02em;
font-variant-numeric:tabular-nums}
.tile .was{font-size:16px;font-weight:400;color:var(--muted);letter-spacing:0}
.tile span{font-size:13px;color:var(--muted)}.tile .gain{color:var(--good);font-weight:600}
.tile .loss{color:var(--bad);font-weight:600}.tile .name{display:block;margin-bottom:4px}
.chart{display:block;width:100%;height:auto}.narrow{display:none}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;
font-variant-numeric:tabular-nums}
th,td{padding:9px 12px;text-align:left;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600;color:var(--muted);font-size:13px}tr:last-child td{border-bottom:0}
td.num,th.num{text-align:right;white-space:nowrap}td small{color:var(--muted)}
.rates{min-width:560px}.rates td{vertical-align:middle}.rates .plot{width:34%}
.rates tr.total td{border-top:1px solid var(--muted);font-weight:600}
.bars{display:grid;grid-template-columns:max-content 1fr max-content;gap:7px 12px;
align-items:center;font-variant-numeric:tabular-nums}
.bars i{display:block;height:14px;border-radius:4px;background:var(--c1);min-width:2px}
.bars .c2 i,.bars i.c2{background:var(--c2)}.bars i.c3{background:var(--c3)}
.track{background:var(--soft);border-radius:4px}
.stack{display:flex;height:26px;border-radius:7px;overflow:hidden;background:var(--soft);
margin-bottom:12px}.stack i{display:block;border-right:1px solid var(--card)}
.keys{display:flex;flex-wrap:wrap;gap:6px 18px;font-size:13px}
.keys i,.dot{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px}
.note{background:var(--warn-soft);border:1px solid var(--line);border-left:4px solid var(--warn);
border-radius:8px;padding:12px 16px;margin:0 0 20px}.note ul{margin:4px 0 0;padding-left:20px}
.chips{display:flex;flex-wrap:wrap;gap:6px;margin:0 0 4px}
.chip{display:inline-block;font-size:12px;line-height:18px;padding:1px 9px;border-radius:99px;
background:var(--soft);color:var(--muted);overflow-wrap:anywhere}
.chip.good{background:var(--good-soft);color:var(--good)}
.chip.bad{background:var(--bad-soft);color:var(--bad)}
.chip.warn{background:var(--warn-soft);color:var(--warn)}
.sample{margin:0 0 14px}summary{cursor:pointer}
.sample>summary{list-style:none;display:flex;flex-wrap:wrap;gap:6px 12px;align-items:center}
.sample>summary::-webkit-details-marker{display:none}
.sample>summary::before{content:"";border:5px solid transparent;border-left-color:var(--muted);
margin-right:-6px;transition:transform .12s;transform-origin:3px 50%}
.sample[open]>summary::before{transform:rotate(90deg)}.sample summary b{overflow-wrap:anywhere}
.talk{margin:16px 0 0;padding:0;list-style:none}
.talk li{margin:0 0 12px;padding:0 0 0 14px;border-left:3px solid var(--line)}
.talk .policy{border-color:var(--c1)}.talk .passing{border-color:var(--good)}
.talk .failing{border-color:var(--bad)}
.who{font-size:12px;font-weight:600;color:var(--muted);margin-bottom:3px}
pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;unicode-bidi:plaintext;
font:13px/1.55 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
.policy pre,.commands pre,.config pre{background:var(--soft);border-radius:8px;padding:9px 12px}
.commands{margin-top:6px;font-size:13px}.sample details summary{font-size:13px;margin-top:8px}
h2+h3,p+h3{margin-top:6px}.sample+h3{margin-top:26px}
.tests{font-size:13px;margin-top:6px}.tests td,.tests th{padding:5px 10px}
.tests td{overflow-wrap:anywhere}.pass{color:var(--good)}.fail{color:var(--bad)}
.columns{columns:2 380px;column-gap:28px}
footer{margin-top:44px;color:var(--muted);font-size:13px}a{color:var(--c1)}
@media(max-width:640px){main{padding:18px 12px 40px}h1{font-size:22px}h2{margin:30px 0 10px}
.card{padding:14px 12px;border-radius:10px}.wide{display:none}.narrow{display:block}
.tiles,.gains{grid-template-columns:1fr 1fr;gap:10px}.gains{margin-bottom:10px}
.tile b{font-size:21px}.gains .tile b{font-size:24px}.gains .tile .was{display:block;font-size:14px}
.charts{grid-template-columns:1fr}.rates{min-width:0}.rates .plot{display:none}
.rates th,.rates td{padding:8px 4px;font-size:13.5px}.rates small{display:block;font-size:11.5px}
.rates tr.total td.num{white-space:normal}.tiles .tile:last-child:nth-child(odd){grid-column:span 2}
.tests td,.tests th{padding:5px 6px}}
@media print{body{background:#fff}.card{break-inside:avoid}}
"""
