{{/* Labels of every object, beside app.kubernetes.io/part-of. Selectors have none of them: they never change. */}}
{{- define "tesela.labels" -}}
app.kubernetes.io/part-of: tesela
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "tesela.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- define "tesela.priorityClassName" -}}
{{ .Values.nodePlugin.priorityClassName | default "tesela-node-plugin" }}
{{- end }}

{{/*
The documents of a file below files/, as a list under the key `documents`, with this release's namespace and labels. The
files are those of the kustomization; names and rights stand in one place so.
*/}}
{{- define "tesela.documents" -}}
{{- $ := index . 0 }}
{{- $text := $.Files.Get (index . 1) | required (printf "the chart lacks %s" (index . 1)) }}
{{- $text = $text | replace "system:serviceaccount:tesela:" (printf "system:serviceaccount:%s:" $.Release.Namespace) }}
{{- $text = regexReplaceAll "(?m)^( +namespace:) tesela$" $text (printf "${1} %s" $.Release.Namespace) }}
{{- $text = $text | replace "[kube-system, tesela]" (printf "[kube-system, %s]" $.Release.Namespace) }}
{{- $text = $text | replace ".tesela.svc" (printf ".%s.svc" $.Release.Namespace) }}
{{- $documents := list }}
{{- range splitList "\n---\n" $text }}
{{- $object := fromYaml . }}
{{- $_ := set $object.metadata "labels" (merge (include "tesela.labels" $ | fromYaml) ($object.metadata.labels | default dict)) }}
{{- $documents = append $documents $object }}
{{- end }}
{{- toYaml (dict "documents" $documents) }}
{{- end }}

{{- define "tesela.file" -}}
{{- range (include "tesela.documents" . | fromYaml).documents }}
---
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Gives the first container of a pod's spec from such a document the image, and the pod its pull secrets. */}}
{{- define "tesela.setImage" -}}
{{- $ := index . 0 }}
{{- $pod := index . 1 }}
{{- $container := first $pod.containers }}
{{- $_ := set $container "image" (include "tesela.image" $) }}
{{- $_ := set $container "imagePullPolicy" $.Values.image.pullPolicy }}
{{- with $.Values.imagePullSecrets }}
{{- $_ := set $pod "imagePullSecrets" . }}
{{- end }}
{{- end }}

{{/* The chart's own labels win over the same ones in the values, as they do in pods' labels and annotations. */}}
{{- define "tesela.nodePlugin.nodeSelector" -}}
{{- $own := dict "kubernetes.io/os" "linux" }}
{{- if eq .Values.gpus "simulated" }}
{{- $_ := set $own "gpu.nvidia.com/simulated" "true" }}
{{- end }}
{{- toYaml (merge $own .Values.nodePlugin.nodeSelector) }}
{{- end }}

{{/* Where the container sees the simulator's folder. */}}
{{- define "tesela.simulated.mount" -}}/run/tesela-sim{{- end }}

{{/* The driver's arguments. */}}
{{- define "tesela.nodePlugin.args" -}}
- plugin
- --policy=/etc/tesela/policy.yaml
{{- if eq .Values.gpus "simulated" }}
{{- $mount := include "tesela.simulated.mount" . }}
- --driver-root={{ .Values.simulated.folder }}/host
- --dev-root={{ .Values.simulated.folder }}/host
- --dev-root-mount={{ $mount }}/host
- --proc-root={{ $mount }}/host/proc
- --sys-root={{ $mount }}/host/sys
{{- else }}
- --driver-root={{ .Values.driverRoot }}
- --proc-root=/host/proc
- --sys-root=/host/sys
{{- end }}
{{- if ne .Values.driverLibraries "auto" }}
- --driver-libraries={{ .Values.driverLibraries }}
{{- end }}
{{- if .Values.besideDevicePlugin }}
- --beside-device-plugin
{{- end }}
{{- if ne .Values.cdiRoot "/var/run/cdi" }}
- --cdi-dir={{ .Values.cdiRoot }}
{{- end }}
{{- with .Values.nodePlugin.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end }}
